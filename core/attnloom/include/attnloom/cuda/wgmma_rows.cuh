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

  // Whether units follow each other here: O~ of one stays in registers while the next begins, where enough of them are left.
  static constexpr bool kFollow = !S::narrow && Class<S, 0>::split_keys && !V::linear_in_distance;

  using Scores = float[1][kKeys / 8][4];

  const Unit<S, V, R>& unit;
  char* memory;          // queries, then the tiles of keys
  int* noted;            // [2][t_kv] listed positions
  Route& route;          // of the unit
  Slice* found;          // of this warp: where the keys lie that are copied next
  Seen<slots>* seen_by;  // [4] of this warp: what the 32 rows do that it describes, each 64 rows, and the unit

  static ATTNLOOM_DEVICE int first_row(int i) { return 64 * i + 16 * warp_id(); }

  // Runs the unit at hand, and those after it while `onward` goes to another one of this class: its first keys are on
  // their way when the last rows of the one before are written.
  template <class Onward>
  ATTNLOOM_DEVICE void run(Onward onward) {
    const Positions positions{unit.index, unit.item, unit.facts.listed};
    const Pairs<V> pairs{unit.params, unit.item, positions, unit.head, unit.facts.masked, unit.facts.by_position};
    KeySite<V> key_site;
    Keys keys{unit,     memory + Tile::q_bytes, noted, found, Keys::kept(route), Keys::kept(whole()), Keys::kept(unit.facts.listed),
              positions, key_site};
    State16<S, V, 1> state[M];
    State16<S, V, 1>& last = state[M - 1];
    Weights<1, kKeys / 8> p[M];
    typename Unit<S, V, R>::template Goal<1> goal;
    last.clear();  // or registers are kept for it from one run to the next
    for (bool here = true, before = false;; before = true) {
      if (here) begin(keys, key_site);
      if (kFollow && before) unit.write_rows(last, goal);
      if (!here) return;
      multiply(keys, state, p, pairs);
#pragma unroll
      for (int i = 0; i < M - 1; i++)
        if (first_row(i) < unit.count) unit.write_fragments(state[i], first_row(i));
      if constexpr (kFollow) {
        unit.finish(last);
        const bool partial = unit.partial();
        if (!partial) {
          __syncwarp();  // keeps the loads of the next line from moving up, where no registers are left for them
          unit.aim(goal, last, first_row(M - 1));
          here = onward();
        }
        finish_products(last);
        if (partial) return unit.write_parts(last, first_row(M - 1));
      } else {
        finish_products(last);
        if (first_row(M - 1) < unit.count) unit.write_fragments(last, first_row(M - 1));
        return;
      }
    }
  }

 private:
  using Keys = KeyTiles<S, V, C, R>;

  // What the rows see that a warp describes.
  ATTNLOOM_DEVICE const Seen<slots>& described_by(int warp) const { return seen_by[4 * (warp - warp_id())]; }
  // What the unit sees.
  ATTNLOOM_DEVICE Seen<slots>& whole() const { return seen_by[3]; }

  // Finds the unit's rows, and asks for its queries and its first keys and values.
  ATTNLOOM_DEVICE void begin(Keys& keys, KeySite<V>& key_site) const {
    const Item& item = unit.item;
    if (threadIdx.x == 32) route.find(Source<S>{unit.args, unit.index, item, unit.head}, kKeys);
    static_assert(Tile::t_q == S::threads);
    unit.describe(Tile::t_q, [&](int r, const PackedRow<V>& row, bool by_position) {
      seen_by[0].look(row, here(static_cast<int>(threadIdx.x)) < unit.count, item, by_position);
    });
    Seen<slots> seen[M];
#pragma unroll
    for (int i = 0; i < M; i++) {
      seen[i] = described_by(2 * i);
      seen[i].join(described_by(2 * i + 1));
      seen_by[1 + i] = seen[i];
    }
#pragma unroll
    for (int i = 1; i < M; i++) seen[0].join(seen[i]);
    whole() = seen[0];
    __syncwarp();
    key_site = unit.key_site();
    keys.begin(route, whole(), unit.facts.listed);
    unit.template copy_queries<Tile>(shared_address(memory));
    if constexpr (V::has_query_transform) close_group();  // of their own: they come before keys
    keys.put_down();
    keys.ask_keys(0);
    keys.ask_values(0);
  }

  // Multiplies the unit's rows with its keys; at the end products of the last rows may be in flight.
  ATTNLOOM_DEVICE void multiply(Keys& keys, State16<S, V, 1> (&state)[M], Weights<1, kKeys / 8> (&p)[M],
                                const Pairs<V>& pairs) const {
    int tile = whole().template next_tile<kKeys>(0);
    if constexpr (V::has_query_transform) {
      wait_groups<2>();
      __syncthreads();
      unit.template transform_queries<Tile>(memory);
    }
    wait_groups<1>();
#pragma unroll
    for (int i = 0; i < M; i++) {
      state[i].clear();
      settle(state[i].o[0]);
    }
    keys.prepare_keys_of(0, tile);
    publish();
    __syncthreads();
    if (tile == keys.kNone) return;

    Scores s;
    begin_products();
    ask_scores(s, 0, keys.k_tile(0));
    close_products();
    close_products();
    View view = look(0, tile, pairs);
    keys.put_down();
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
        return;
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
  }
  static ATTNLOOM_DEVICE void finish_products(State16<S, V, 1>& last) {
    wait_products<0>();
    settle(last.o[0]);
  }

  // Whether some of the i-th 64 rows see a key of a tile, and whether all see all.
  struct View {
    bool some, all;
  };
  ATTNLOOM_DEVICE View look(int i, int tile, const Pairs<V>& pairs) const {
    const int first = tile * kKeys;
    const Seen<slots>& rows = seen_by[1 + i];
    return {rows.sees_some(first, first + kKeys), !pairs.masked && rows.sees_all(first, first + kKeys)};
  }

  // Scores of rows [64 i, 64 i + 64) become weights once they have come in; at the end no product is in flight.
  ATTNLOOM_DEVICE void weigh_rows(Scores& s, Weights<1, kKeys / 8>& p, State16<S, V, 1>& state, int i, int tile,
                                  View view, const Pairs<V>& pairs, const int* noted) const {
    const Units<V> units = unit.facts.units;
    const auto reading = read<V, 1>(pairs, unit.rows, units, first_row(i), tile * kKeys);
    wait_products<1>();
    settle(s[0]);
    Rescale<1> rescale{};
    if (view.some) {
      rescale = weigh<S, V>(s, p, state, reading, pairs, unit.rows, units, first_row(i), tile * kKeys, noted, view.all);
    } else {
      clear(p);
    }
    settle(p[0]);
    if (rescale.any && tile != whole().template next_tile<kKeys>(0)) {  // O~ is 0 in the first
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
