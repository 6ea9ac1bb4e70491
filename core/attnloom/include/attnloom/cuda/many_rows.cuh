// Units of many rows, mostly prefill: every warp holds some rows, and all of them take the same tiles of keys.
#pragma once
#include "unit.cuh"

namespace attnloom::cuda {

template <class S, class V, int C, class R>
struct ManyRows {
  using Tile = Class<S, C>;
  static constexpr int M = Tile::m_tiles;
  static constexpr int slots = R::slots;
  static constexpr int kKeys = Tile::t_kv, kStep = Tile::step;
  static constexpr int kSlices = (kKeys / kSlice + S::warps - 1) / S::warps;  // of a warp
  static constexpr int k_bytes = kKeys * S::KTile::row_bytes, v_bytes = kKeys * S::VTile::row_bytes;

  const Unit<S, V, R>& unit;
  char* memory;  // queries, two tiles of K, two tiles of V
  int* noted;    // [2][t_kv] listed positions
  Slice* found;          // [warps][slices of a warp]: where the keys lie that are copied next
  Seen<slots>* seen_by;  // [warps][2]: what the unit sees, and what the warp's rows do

  ATTNLOOM_DEVICE int warp() const { return warp_id(); }
  ATTNLOOM_DEVICE int first_row() const { return warp_id() * 16 * M; }
  ATTNLOOM_DEVICE Slice* mine_found() const { return found + warp_id() * kSlices; }
  ATTNLOOM_DEVICE char* k_tile(int i) const { return memory + Tile::q_bytes + i * k_bytes; }
  ATTNLOOM_DEVICE char* v_tile(int i) const { return memory + Tile::q_bytes + 2 * k_bytes + i * v_bytes; }

  // The keys that this warp copies of a tile.
  struct Places {
    Place at[kSlices];

    ATTNLOOM_DEVICE void put_down(const RunArgs& args, Slice* found) const {
#pragma unroll
      for (int n = 0; n < kSlices; n++) at[n].template put_down<S>(args, found[n]);
      __syncwarp();
    }

    ATTNLOOM_DEVICE void find(const Source<S>& source, const Seen<slots>& seen, int tile) {
      const Trail trail(source, kKeys);
#pragma unroll
      for (int n = 0; n < kSlices; n++) {
        const int slice = warp_id() + n * S::warps;
        const int key = tile * kKeys + slice * kSlice + lane_id() % kSlice;
        at[n].seek(trail, source.item, key);
        at[n].look_up(trail, tile != Seen<slots>::kNone && slice < kKeys / kSlice && seen.sees(key));
      }
    }
  };
  template <class F>
  ATTNLOOM_DEVICE void each_slice(F f) const {
#pragma unroll
    for (int n = 0; n < kSlices; n++) {
      const int slice = warp() + n * S::warps;
      if (slice < kKeys / kSlice) f(n, slice * kSlice);
    }
  }

  ATTNLOOM_DEVICE void run() {
    const Item& item = unit.item;
    const Positions positions{unit.index, item, unit.facts.listed};
    unit.describe(Tile::t_q);
    const bool by_position = unit.facts.by_position;
    unit.copy_queries(shared_address(memory), Tile::t_q);

    Seen<slots>& seen = seen_by[2 * warp()];
    Seen<slots>& mine = seen_by[2 * warp() + 1];
    seen.look(unit.rows, 0, unit.count, item, by_position);
    mine.look(unit.rows, first_row(), max(0, min(16 * M, unit.count - first_row())), item, by_position);
    __syncwarp();
    const Source<S> source{unit.args, unit.index, item, unit.head};

    int tile = seen.template next_tile<kKeys>(0), next = Seen<slots>::kNone;
    Places places;  // of `tile`, then of `next`
    places.find(source, seen, tile);
    places.put_down(unit.args, mine_found());
    const auto ask_keys = [&](int i, int of_tile) {
      if (of_tile != Seen<slots>::kNone)
        each_slice([&](int n, int row) {
          positions.note(of_tile * kKeys + row, noted + i * kKeys + row);
          copy_keys(source, mine_found()[n], shared_address(k_tile(i)) + row * S::KTile::row_bytes);
        });
      close_group();
    };
    // The last of a tile's copies; the places move on.
    const auto ask_values = [&](int i, int of_tile) {
      if (of_tile != Seen<slots>::kNone) {
        each_slice([&](int n, int row) {
          copy_values(source, mine_found()[n], shared_address(v_tile(i)) + row * S::VTile::row_bytes);
        });
        next = seen.template next_tile<kKeys>(of_tile + 1);
        places.find(source, seen, next);
      }
      close_group();
    };
    ask_keys(0, tile);
    ask_values(0, tile);
    __syncwarp();
    places.put_down(unit.args, mine_found());

    wait_groups<1>();
    __syncthreads();
    if constexpr (V::has_query_transform) {
      unit.transform_queries(memory, Tile::t_q);
      __syncthreads();
    }
    Queries<S, M, Tile::q_in_registers> q;
    q.take(shared_address(memory), first_row());
    const Units<V>& units = unit.facts.units;
    const float step = units.step;
    const Pairs<V> pairs{unit.params, item, positions, unit.head, unit.facts.masked, unit.facts.by_position};
    const KeySite<V> key_site = unit.key_site();
    State16<S, V, M> state;
    state.clear();

    for (int turn = 0; tile != Seen<slots>::kNone; turn ^= 1) {
      wait_groups<1>();
      if constexpr (V::has_key_transform || S::narrow) {
        __syncwarp();
        each_slice([&](int, int row) {
          prepare_keys<S, V>(k_tile(turn) + row * S::KTile::row_bytes, unit.params, key_site, positions, tile * kKeys + row,
                             noted + turn * kKeys + row);
        });
      }
      __syncthreads();
      ask_keys(turn ^ 1, next);
      const int now = tile;
      tile = next;

#pragma unroll 1
      for (int part = 0; part < kKeys / kStep; part++) {
        const int first = now * kKeys + part * kStep;
        const bool busy = mine.sees_some(first, first + kStep);
        Weights<M, kStep / 8> p;
        if (busy) {
          float s[M][kStep / 8][4];
          multiply_keys<S>(s, q, shared_address(k_tile(turn)) + part * kStep * S::KTile::row_bytes);
          score<S, V>(s, pairs, unit.rows, units, first_row(), first, noted + turn * kKeys + part * kStep,
                      !pairs.masked && mine.sees_all(first, first + kStep));
          weigh<S, V>(s, p, state, step);
        }
        if (part == 0) {
          wait_groups<1>();
          if constexpr (V::has_value_transform || S::narrow) {
            __syncwarp();
            each_slice([&](int, int row) {
              prepare_values<S, V>(v_tile(turn) + row * S::VTile::row_bytes, unit.params, key_site, positions,
                                   now * kKeys + row, noted + turn * kKeys + row, seen);
            });
          }
          __syncthreads();
          ask_values(turn ^ 1, tile);
        }
        if (busy) multiply_values<S>(state.o, p, shared_address(v_tile(turn)) + part * kStep * S::VTile::row_bytes);
        if (part == 0) places.put_down(unit.args, mine_found());
      }
    }
    wait_groups<0>();
    if (first_row() < unit.count) unit.write_fragments(state, first_row(), units.unit);
  }
};

}  // namespace attnloom::cuda
