// Units of many rows, mostly prefill: every warp holds some rows, and all of them take the same tiles of keys.
#pragma once
#include "key_tiles.cuh"

namespace attnloom::cuda {

template <class S, class V, int C, class R>
struct ManyRows {
  using Tile = Class<S, C>;
  static constexpr int M = Tile::m_tiles;
  static constexpr int slots = R::slots;
  static constexpr int kKeys = Tile::t_kv, kStep = Tile::step;

  const Unit<S, V, R>& unit;
  char* memory;          // queries, then the tiles of keys
  int* noted;            // [2][t_kv] listed positions
  Route& route;          // of the unit
  Slice* found;          // of this warp: where the keys lie that are copied next
  Seen<slots>* seen_by;  // of this warp: what the unit sees, and what the warp's rows do

  ATTNLOOM_DEVICE int first_row() const { return warp_id() * 16 * M; }

  ATTNLOOM_DEVICE void run() {
    const Item& item = unit.item;
    const Positions positions{unit.index, item, unit.facts.listed};
    if (threadIdx.x == 32) route.find(Source<S>{unit.args, unit.index, item, unit.head}, kKeys);
    unit.describe(Tile::t_q);
    const bool by_position = unit.facts.by_position;
    unit.template copy_queries<Tile>(shared_address(memory));

    Seen<slots>&seen = seen_by[0], &mine = seen_by[1];
    seen.look(unit.rows, 0, unit.count, item, by_position);
    mine.look(unit.rows, first_row(), max(0, min(16 * M, unit.count - first_row())), item, by_position);
    __syncwarp();
    const KeySite<V> key_site = unit.key_site();
    KeyTiles<S, V, C, R> keys{unit, memory + Tile::q_bytes, noted, found, route, seen, unit.facts.listed, positions, key_site};
    keys.begin(route, seen, unit.facts.listed);
    keys.put_down();
    int tile = keys.next;
    keys.ask_keys(0);
    keys.ask_values(0);
    keys.put_down();

    wait_groups<1>();
    __syncthreads();
    if constexpr (V::has_query_transform) {
      unit.template transform_queries<Tile>(memory);
      __syncthreads();
    }
    Queries<S, M, Tile::q_in_registers> q;
    q.take(shared_address(memory), first_row());
    const Units<V>& units = unit.facts.units;
    const Pairs<V> pairs{unit.params, item, positions, unit.head, unit.facts.masked, unit.facts.by_position};
    State16<S, V, M> state;
    state.clear();

    for (int turn = 0; tile != Seen<slots>::kNone; turn ^= 1) {
      wait_groups<1>();
      keys.prepare_keys_of(turn, tile);
      __syncthreads();
      keys.ask_keys(turn ^ 1);
      const int now = tile;
      tile = keys.next;

#pragma unroll 1
      for (int part = 0; part < kKeys / kStep; part++) {
        const int first = now * kKeys + part * kStep;
        const bool busy = mine.sees_some(first, first + kStep);
        Weights<M, kStep / 8> p;
        if (busy) {
          float s[M][kStep / 8][4];
          multiply_keys<S, S::T>(s, q, KeyOperands<S>(shared_address(keys.k_tile(turn)) + part * kStep * S::KTile::row_bytes));
          weigh<S, V>(s, p, state, read<V, M>(pairs, unit.rows, units, first_row(), first), pairs, unit.rows, units, first_row(), first,
                      keys.noted_at(turn) + part * kStep, !pairs.masked && mine.sees_all(first, first + kStep))
              .apply(state.o);
        }
        if (part == 0) {
          wait_groups<1>();
          keys.prepare_values_of(turn, now);
          __syncthreads();
          keys.ask_values(turn ^ 1);
        }
        if (busy) multiply_values<S>(state.o, p, shared_address(keys.v_tile(turn)) + part * kStep * S::VTile::row_bytes);
        if (part == 0) keys.put_down();
      }
    }
    wait_groups<0>();
    if (first_row() < unit.count) unit.write_fragments(state, first_row());
  }
};

}  // namespace attnloom::cuda
