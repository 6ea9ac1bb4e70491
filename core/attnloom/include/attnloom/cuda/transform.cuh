// Row functors over rows in shared memory, and fp8 rows made into 16-bit ones, in place.
#pragma once
#include "loader.cuh"
#include "narrow.cuh"
#include "row_map.cuh"

namespace attnloom::cuda {

// Makes fp8 rows [0, 16) at `memory` into rows of T, in place, by one warp: all is read before anything is written.
template <DType T, DType Stored, int D, class Tile>
ATTNLOOM_DEVICE void widen_rows(char* memory) {
  constexpr int pieces = D / 16, all = kSlice * pieces, turns = (all + 31) / 32;
  const int lane = lane_id();
  uint4 raw[turns];
#pragma unroll
  for (int i = 0; i < turns; i++) {
    const int n = lane + 32 * i;
    if (all % 32 == 0 || n < all) raw[i] = *reinterpret_cast<const uint4*>(memory + Tile::at(n / pieces, pieces + n % pieces));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < turns; i++) {
    const int n = lane + 32 * i, row = n / pieces, piece = n % pieces * 2;
    if (all % 32 != 0 && n >= all) break;
    uint4 first, second;
    widen<T, Stored>(raw[i].x, first.x, first.y);
    widen<T, Stored>(raw[i].y, first.z, first.w);
    widen<T, Stored>(raw[i].z, second.x, second.y);
    widen<T, Stored>(raw[i].w, second.z, second.w);
    *reinterpret_cast<uint4*>(memory + Tile::at(row, piece)) = first;
    *reinterpret_cast<uint4*>(memory + Tile::at(row, piece + 1)) = second;
  }
  __syncwarp();
}

// Rows [0, 16) at `memory`, of T or fp8, through f(row, view), which sees 32-bit floats; by one warp.
template <DType T, DType Stored, int D, class Tile, class F>
ATTNLOOM_DEVICE void transform_rows(char* memory, F f) {
  constexpr bool narrow = Stored == kE4M3 || Stored == kE5M2;
  constexpr int width = narrow ? 4 : 2;
  // As many lanes a row as let the halves of its pairs still meet in one lane; sixteen only where registers are short.
  constexpr int lanes = D > 128 && D / 2 % (16 * width) == 0 ? 16 : D / 2 % (8 * width) == 0 ? 8 : 4;
  using Map = SpreadMap<D, lanes, width>;
  constexpr int at_once = narrow || D > 192 ? 1 : 2;  // passes that share what a functor loads by column, as registers allow
#pragma unroll at_once
  for (int pass = 0; pass < kSlice * lanes / 32; pass++) {
    const int lane = lane_id(), c = lane % lanes;
    // Rows that a pass takes together have their pieces swizzled apart.
    constexpr int apart = lanes / 4;  // of an eight of rows
    const int row = apart * (lane / lanes) + pass % apart + pass / apart * 8;
    // Where the bytes of a unit lie, of which it has `size`.
    const auto at = [&](int i, int size, int first) {
      const int byte = (c + lanes * i) * size;
      return memory + Tile::at(row, first + byte / 16) + byte % 16;
    };
    uint32_t raw[Map::held];
#pragma unroll
    for (int i = 0; i < Map::held; i++) raw[i] = *reinterpret_cast<const uint32_t*>(at(i, 4, narrow ? D / 16 : 0));
    Row<Map> view;
#pragma unroll
    for (int i = 0; i < Map::held; i++) {
      if constexpr (narrow) {
        uint32_t low, high;
        widen<kF16, Stored>(raw[i], low, high);
        unpack<kF16>(low, view.x.at[i][0], view.x.at[i][1]);
        unpack<kF16>(high, view.x.at[i][2], view.x.at[i][3]);
      } else {
        unpack<T>(raw[i], view.x.at[i][0], view.x.at[i][1]);
      }
    }
    f(row, view);
    if constexpr (narrow) __syncwarp();
#pragma unroll
    for (int i = 0; i < Map::held; i++)
#pragma unroll
      for (int e = 0; e < width; e += 2)
        *reinterpret_cast<uint32_t*>(at(i, 2 * width, 0) + 2 * e) = pack<T>(view.x.at[i][e], view.x.at[i][e + 1]);
  }
  __syncwarp();
}

// What the transforms of an item's keys are given.
template <class V>
struct KeySite {
  int request, kv_head, qo_len, kv_len;
  float k_scale, v_scale;

  // Of key `key` (or the item's last one if there are fewer); `noted`: where the position stands if it is listed.
  ATTNLOOM_DEVICE Site at(const Positions& positions, int key, const int* noted) const {
    const int index = positions.item.kv_start + min(key, positions.last());
    return {request, -1, kv_head, -1, index, 0, positions.listed ? *noted : index, qo_len, kv_len};
  }
};

// The row transforms of 16 keys of an item, from ordinal `first` on.
template <class V>
struct SliceTransforms {
  const typename V::Params& params;
  const KeySite<V>& site;
  const Positions& positions;
  int first;
  const int* noted;  // where the positions stand if they are listed

  template <class Row>
  ATTNLOOM_DEVICE void key(int j, Row& row) const {
    scale(row, site.k_scale);
    V::key_transform(params, row, site.at(positions, first + j, noted + j));
  }
  // Zeros where no row sees the key.
  template <class Row, class Seen>
  ATTNLOOM_DEVICE void value(int j, Row& row, const Seen& seen) const {
    scale(row, site.v_scale);
    V::value_transform(params, row, site.at(positions, first + j, noted + j));
    if (!seen.sees(first + j)) row.each([](int, float& x) { x = 0.0f; });
  }

 private:
  template <class Row>
  static ATTNLOOM_DEVICE void scale(Row& row, float factor) {
    if (factor != 1.0f) row.each([factor](int, float& x) { x *= factor; });
  }
};

// Makes the 16 keys, or values, from ordinal `first` on ready for the products, in shared memory, after their copy has
// come in.
template <class S, class V, class Tile>
ATTNLOOM_DEVICE void prepare_keys(char* memory, const typename V::Params& params, const KeySite<V>& site,
                                  const Positions& positions, int first, const int* noted) {
  const SliceTransforms<V> transforms{params, site, positions, first, noted};
  if constexpr (V::has_key_transform)
    transform_rows<S::T, S::kv, S::head_dim, Tile>(memory, [&](int row, auto& view) { transforms.key(row, view); });
  else if constexpr (S::narrow) widen_rows<S::T, S::kv, S::head_dim, Tile>(memory);
}
template <class S, class V, class Tile, class Seen>
ATTNLOOM_DEVICE void prepare_values(char* memory, const typename V::Params& params, const KeySite<V>& site,
                                    const Positions& positions, int first, const int* noted, const Seen& seen) {
  const SliceTransforms<V> transforms{params, site, positions, first, noted};
  if constexpr (V::has_value_transform)
    transform_rows<S::T, S::kv, S::head_dim_v, Tile>(memory, [&](int row, auto& view) { transforms.value(row, view, seen); });
  else if constexpr (S::narrow) widen_rows<S::T, S::kv, S::head_dim_v, Tile>(memory);
}

}  // namespace attnloom::cuda
