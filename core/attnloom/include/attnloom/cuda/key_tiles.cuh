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
  static constexpr int kRowBytes = S::head_dim * S::key_bytes;                // of a key
  // What is read for every tile stands in registers, where functors and the other tile class leave enough of them: shared
  // memory is slow behind copies.
  static constexpr bool kRoomy =
      Tile::wgmma && Class<S, 0>::m_tiles == 1 && !V::has_logits_mask && !V::may_curve && !V::has_key_transform;
  template <class T>
  using Kept = std::conditional_t<kRoomy, T, const T&>;
  // What stands for `x` until `begin` reads it: others may still write it.
  template <class T>
  static ATTNLOOM_DEVICE Kept<T> kept(const T& x) {
    if constexpr (kRoomy) return {};
    else return x;
  }

  const Unit<S, V, R>& unit;
  char* memory;  // two tiles of K, two tiles of V
  int* noted;    // [2][t_kv] listed positions
  Slice* found;  // [slices of a warp]: where the keys lie that are copied next
  Kept<Route> route;
  Kept<Sight> seen;  // by the unit
  Kept<bool> listed;
  const Positions& positions;
  const KeySite<V>& site;
  int next;               // the tile after the last whose keys were asked for
  Place places[kSlices];  // of `next`
  FollowingRows<KTile, kRowBytes> ahead;  // keys that were transformed ahead

  ATTNLOOM_DEVICE char* k_tile(int i) const { return memory + i * KTile::bytes(kKeys); }
  ATTNLOOM_DEVICE char* v_tile(int i) const { return memory + 2 * KTile::bytes(kKeys) + i * VTile::bytes(kKeys); }
  ATTNLOOM_DEVICE int* noted_at(int i) const { return noted + i * kKeys; }

  // f(n, row) for each slice n of this warp, from row `row` of the tile on.
  template <class F>
  static ATTNLOOM_DEVICE void each_slice(F f) {
#pragma unroll
    for (int n = 0; n < kSlices; n++) {
      const int slice = warp_id() + n * S::warps;
      if (kKeys / kSlice % S::warps == 0 || slice < kKeys / kSlice) f(n, slice * kSlice);
    }
  }

  // Begins a unit: goes to the first tile of which some row sees a key; its page ids come in later.
  ATTNLOOM_DEVICE void begin(const Route& route, const Sight& seen, bool listed) {
    if constexpr (kRoomy) this->route = route, this->seen = seen, this->listed = listed;
    next = seen.template next_tile<kKeys>(0);
    if constexpr (S::keys_ahead) {
      const int row = warp_id() * kSlice;
      ahead = {route.base[0] + row * kRowBytes, shared_address(memory) + row * KTile::row_bytes};
    }
    each_slice([&](int n, int row) { places[n].seek(route.trail, unit.item, key_of(row)); });
    look_up(route.trail, seen);
  }
  // Notes where the keys of `next` lie, for the warp, once it has read where those before lay.
  ATTNLOOM_DEVICE void put_down() const {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kSlices; n++) places[n].template put_down<S, KTile, VTile>(route, found[n]);
    __syncwarp();
  }

  // Asks for the keys of `next`, into tile i.
  ATTNLOOM_DEVICE void ask_keys(int i) const {
    if (next != kNone)
      each_slice([&](int n, int row) {
        if (listed) positions.note(next * kKeys + row, noted_at(i) + row);
        if constexpr (S::keys_ahead) {
          const int beyond = n * S::warps * kSlice;  // the warp's first slice
          ahead.copy((int64_t{next} * kKeys + beyond) * kRowBytes, i * KTile::bytes(kKeys) + beyond * KTile::row_bytes);
        } else {
          copy_rows<KTile, kRowBytes, 0>(route.base[0], found[n], shared_address(k_tile(i)) + row * KTile::row_bytes);
        }
      });
    close_group();
  }
  // Asks for the values of `next`, and goes on.
  ATTNLOOM_DEVICE void ask_values(int i) {
    if (next != kNone) {
      // Read before the copies are asked for, behind which shared memory is slow.
      const Trail trail = route.trail;
      const Sight sight = seen;
      each_slice([&](int n, int row) {
        copy_rows<VTile, S::head_dim_v * S::key_bytes, 1>(route.base[1], found[n],
                                                          shared_address(v_tile(i)) + row * VTile::row_bytes);
      });
      step(trail, sight);
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

 private:
  // This lane's key of a slice of `next`, a negative one where there is no tile.
  ATTNLOOM_DEVICE int key_of(int row) const {
    static_assert(static_cast<int>(uint32_t{kNone} * kKeys) == -kKeys);
    return static_cast<int>(static_cast<uint32_t>(next) * kKeys) + row + lane_id() % kSlice;
  }

  ATTNLOOM_DEVICE void step(const Trail& trail, const Sight& sight) {
    const int before = next;
    next = sight.template next_tile<kKeys>(before + 1);
    each_slice([&](int n, int row) {
      if (next == before + 1) places[n].step(trail);
      else places[n].seek(trail, unit.item, key_of(row));
    });
    look_up(trail, sight);
  }

  ATTNLOOM_DEVICE void look_up(const Trail& trail, const Sight& sight) {
    each_slice([&](int n, int row) { places[n].look_up(trail, sight.sees(key_of(row))); });
  }
};

}  // namespace attnloom::cuda
