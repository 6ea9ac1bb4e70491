// Tiles of keys that all warps take together: one of K and of V in use, one on its way, each warp copying slices of its own.
#pragma once
#include "unit.cuh"

namespace attnloom::cuda {

template <class S, class V, int C, class R>
struct KeyTiles {
  using Tile = Class<S, C>;
  using KTile = typename Tile::KTile;
  using VTile = typename Tile::VTile;
  using Sight = Seen<R::slots>;
  static constexpr int kNone = Sight::kNone;
  static constexpr int kKeys = Tile::t_kv;
  static constexpr int kSlices = (kKeys / kSlice + S::warps - 1) / S::warps;  // of a warp

  const Unit<S, V, R>& unit;
  char* memory;       // two tiles of K, two tiles of V
  int* noted;         // [2][t_kv] listed positions
  Slice* found;       // [slices of a warp]: where the keys lie that are copied next
  const Sight& seen;  // by the unit
  const Positions& positions;
  const KeySite<V>& site;
  int next;           // the tile after the last whose keys were asked for
  Place places[kSlices];  // of `next`

  ATTNLOOM_DEVICE char* k_tile(int i) const { return memory + i * KTile::bytes(kKeys); }
  ATTNLOOM_DEVICE char* v_tile(int i) const { return memory + 2 * KTile::bytes(kKeys) + i * VTile::bytes(kKeys); }
  ATTNLOOM_DEVICE int* noted_at(int i) const { return noted + i * kKeys; }

  // f(n, row) for each slice n of this warp, from row `row` of the tile on.
  template <class F>
  static ATTNLOOM_DEVICE void each_slice(F f) {
#pragma unroll
    for (int n = 0; n < kSlices; n++) {
      const int slice = warp_id() + n * S::warps;
      if (slice < kKeys / kSlice) f(n, slice * kSlice);
    }
  }

  // Goes on to the first tile, from the `tile`-th on, of which some row sees a key; its page ids come in later.
  ATTNLOOM_DEVICE void seek(int tile) {
    next = seen.template next_tile<kKeys>(tile);
    const Trail trail(Source<S>{unit.args, unit.index, unit.item, unit.head}, kKeys);
#pragma unroll
    for (int n = 0; n < kSlices; n++) {
      const int slice = warp_id() + n * S::warps;
      const int key = next * kKeys + slice * kSlice + lane_id() % kSlice;
      places[n].seek(trail, unit.item, key);
      places[n].look_up(trail, next != kNone && slice < kKeys / kSlice && seen.sees(key));
    }
  }
  // Notes where the keys of `next` lie, for the warp, once it has read where those before lay.
  ATTNLOOM_DEVICE void put_down() const {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kSlices; n++) places[n].template put_down<S>(unit.args, found[n]);
    __syncwarp();
  }

  // Asks for the keys of `next`, into tile i.
  ATTNLOOM_DEVICE void ask_keys(int i) const {
    const Source<S> source{unit.args, unit.index, unit.item, unit.head};
    if (next != kNone)
      each_slice([&](int n, int row) {
        positions.note(next * kKeys + row, noted_at(i) + row);
        copy_keys<S, KTile>(source, found[n], shared_address(k_tile(i)) + row * KTile::row_bytes);
      });
    close_group();
  }
  // Asks for the values of `next`, and goes on.
  ATTNLOOM_DEVICE void ask_values(int i) {
    const Source<S> source{unit.args, unit.index, unit.item, unit.head};
    if (next != kNone) {
      each_slice([&](int n, int row) {
        copy_values<S, VTile>(source, found[n], shared_address(v_tile(i)) + row * VTile::row_bytes);
      });
      seek(next + 1);
    }
    close_group();
  }

  // Makes this warp's slices of tile i, which are those of the `tile`-th keys, ready for the products.
  ATTNLOOM_DEVICE void prepare_keys_of(int i, int tile) const {
    if constexpr (V::has_key_transform || S::narrow) {
      __syncwarp();
      each_slice([&](int, int row) {
        prepare_keys<S, V, KTile>(k_tile(i) + row * KTile::row_bytes, unit.params, site, positions, tile * kKeys + row,
                                  noted_at(i) + row);
      });
    }
  }
  ATTNLOOM_DEVICE void prepare_values_of(int i, int tile) const {
    if constexpr (V::has_value_transform || S::narrow) {
      __syncwarp();
      each_slice([&](int, int row) {
        prepare_values<S, V, VTile>(v_tile(i) + row * VTile::row_bytes, unit.params, site, positions, tile * kKeys + row,
                                    noted_at(i) + row, seen);
      });
    }
  }
};

}  // namespace attnloom::cuda
