// Units of many rows on Hopper: the warps are one warpgroup, whose products run while it works on the weights of others.
#pragma once
#include "key_tiles.cuh"
#include "wgmma.cuh"

namespace attnloom::cuda {

template <class S, class V, int C, class R>
struct WgmmaRows {
  using Tile = Class<S, C>;
  using QTile = typename Tile::QTile;
  using KTile = typename Tile::KTile;
  using VTile = typename Tile::VTile;
  static constexpr int M = Tile::m_tiles;  // of 64 rows
  static constexpr int slots = R::slots;
  static constexpr int kKeys = Tile::t_kv;

  using Scores = float[1][kKeys / 8][4];

  const Unit<S, V, R>& unit;
  char* memory;          // queries, then the tiles of keys
  int* noted;            // [2][t_kv] listed positions
  Route& route;          // of the unit
  Slice* found;          // of this warp: where the keys lie that are copied next
  Seen<slots>* seen_by;  // of this warp: what the unit sees, and what the warp's rows of each 64 do

  static ATTNLOOM_DEVICE int first_row(int i) { return 64 * i + 16 * warp_id(); }

  ATTNLOOM_DEVICE void run() {
    const Item& item = unit.item;
    const Positions positions{unit.index, item, unit.facts.listed};
    if (threadIdx.x == 32) route.find(Source<S>{unit.args, unit.index, item, unit.head}, kKeys);
    unit.describe(Tile::t_q);
    const bool by_position = unit.facts.by_position;
    Seen<slots>& seen = seen_by[0];
    seen.look(unit.rows, 0, unit.count, item, by_position);
    __syncwarp();
    const KeySite<V> key_site = unit.key_site();
    KeyTiles<S, V, C, R> keys{unit, memory + Tile::q_bytes, noted, found, route, seen, unit.facts.listed, positions, key_site};
    keys.begin();
    unit.template copy_queries<Tile>(shared_address(memory));
#pragma unroll
    for (int i = 0; i < M; i++)
      seen_by[1 + i].look(unit.rows, first_row(i), max(0, min(16, unit.count - first_row(i))), item, by_position);
    keys.put_down();
    int tile = keys.next;
    keys.ask_keys(0);
    keys.ask_values(0);
    keys.put_down();

    State16<S, V, 1> state[M];
#pragma unroll
    for (int i = 0; i < M; i++) {
      state[i].clear();
      settle(state[i].o[0]);
    }
    wait_groups<1>();
    if constexpr (V::has_query_transform) {
      __syncthreads();
      unit.template transform_queries<Tile>(memory);
    }
    keys.prepare_keys_of(0, tile);
    publish();
    __syncthreads();

    const Pairs<V> pairs{unit.params, item, positions, unit.head, unit.facts.masked, unit.facts.by_position};
    if (tile != keys.kNone) {
      Scores s;
      Weights<1, kKeys / 8> p[M];
      begin_products();
      ask_scores(s, 0, keys.k_tile(0));
      close_products();
      close_products();
      View view = look(0, tile, pairs);
      keys.ask_keys(1);
      for (int turn = 0;; turn ^= 1) {
        const int now = tile;
        tile = keys.next;
#pragma unroll
        for (int i = 0; i < M - 1; i++) {
          weigh_rows(s, p[i], state[i], i, now, view, pairs, keys.noted_at(turn));
          wait_groups<1>();
          keys.prepare_values_of(turn, now);
          publish();
          __syncthreads();
          begin_products();
          ask_scores(s, i + 1, keys.k_tile(turn));
          close_products();
          ask_values(state[i], p[i], keys.v_tile(turn));
          close_products();
          view = look(i + 1, now, pairs);
          keys.ask_values(turn ^ 1);
        }
        weigh_rows(s, p[M - 1], state[M - 1], M - 1, now, view, pairs, keys.noted_at(turn));
        keys.put_down();
        if (tile == keys.kNone) {
          begin_products();
          ask_values(state[M - 1], p[M - 1], keys.v_tile(turn));
          close_products();
          break;
        }
        wait_groups<1>();
        keys.prepare_keys_of(turn ^ 1, tile);
        publish();
        __syncthreads();
        begin_products();
        ask_scores(s, 0, keys.k_tile(turn ^ 1));
        close_products();
        ask_values(state[M - 1], p[M - 1], keys.v_tile(turn));
        close_products();
        view = look(0, tile, pairs);
        keys.ask_keys(turn);
      }
      wait_products<0>();
      settle(state[M - 1].o[0]);
    }
    wait_groups<0>();
#pragma unroll
    for (int i = 0; i < M; i++)
      if (first_row(i) < unit.count) unit.write_fragments(state[i], first_row(i), unit.facts.units.unit);
  }

  // Whether some of the warp's rows of the i-th 64 see a key of a tile, and whether all see all.
  struct View {
    bool some, all;
  };
  ATTNLOOM_DEVICE View look(int i, int tile, const Pairs<V>& pairs) const {
    const int first = tile * kKeys;
    const Seen<slots>& mine = seen_by[1 + i];
    return {mine.sees_some(first, first + kKeys), !pairs.masked && mine.sees_all(first, first + kKeys)};
  }

  // Scores of rows [64 i, 64 i + 64) become weights once they have come in; at the end no product is in flight.
  ATTNLOOM_DEVICE void weigh_rows(Scores& s, Weights<1, kKeys / 8>& p, State16<S, V, 1>& state, int i, int tile,
                                  View view, const Pairs<V>& pairs, const int* noted) const {
    const Units<V> units = unit.facts.units;
    wait_products<1>();
    settle(s[0]);
    Rescale<1> rescale{};
    if (view.some) {
      score<S, V>(s, pairs, unit.rows, units, first_row(i), tile * kKeys, noted, view.all);
      if constexpr (V::use_softmax) rescale = follow<S, V>(s, state, units.step);
      take_weights<S, V>(s, p, state, units.step);
    } else {
      clear(p);
    }
    settle(p[0]);
    if (rescale.any) {
      wait_products<0>();
      rescale.apply(state.o);
    }
    wait_products<0>();
  }

  static ATTNLOOM_DEVICE void clear(Weights<1, kKeys / 8>& p) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; step++)
#pragma unroll
      for (int e = 0; e < 4; e++) p[0][step][e] = 0;
  }

  // s = Q K^T for rows [64 i, 64 i + 64).
  ATTNLOOM_DEVICE void ask_scores(Scores& s, int i, const char* k) const {
    const uint64_t a = operand(shared_address(memory) + 64 * i * QTile::row_bytes, QTile::block_bytes);
    const uint64_t b = operand(shared_address(k), KTile::block_bytes);
    multiply_rows<S::T, false>(s[0], a, b);
#pragma unroll
    for (int step = 1; step < S::k_steps; step++)
      multiply_rows<S::T, true>(s[0], a + QTile::at(0, 2 * step) / 16, b + KTile::at(0, 2 * step) / 16);
  }

  // O~ += P V.
  ATTNLOOM_DEVICE void ask_values(State16<S, V, 1>& state, const Weights<1, kKeys / 8>& p, const char* v) const {
    const uint64_t b = operand(shared_address(v), VTile::block_bytes);
#pragma unroll
    for (int step = 0; step < kKeys / 16; step++)
      multiply_columns<S::T>(state.o[0], p[0][step], b + step * 16 * VTile::row_bytes / 16);
  }
};

}  // namespace attnloom::cuda
