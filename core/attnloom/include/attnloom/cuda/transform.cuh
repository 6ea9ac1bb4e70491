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
    const auto low = [](uint32_t x) { return widen<T, Stored>(__byte_perm(x, 0, 0x4140)); };
    const auto high = [](uint32_t x) { return widen<T, Stored>(__byte_perm(x, 0, 0x4342)); };
    *reinterpret_cast<uint4*>(memory + Tile::at(row, piece)) = {low(raw[i].x), high(raw[i].x), low(raw[i].y), high(raw[i].y)};
    *reinterpret_cast<uint4*>(memory + Tile::at(row, piece + 1)) = {low(raw[i].z), high(raw[i].z), low(raw[i].w), high(raw[i].w)};
  }
  __syncwarp();
}

// Rows [0, 16) at `memory`, of T or fp8, through f(row, view), which sees 32-bit floats; by one warp.
template <DType T, DType Stored, int D, class Tile, class F>
ATTNLOOM_DEVICE void transform_rows(char* memory, F f) {
  constexpr bool narrow = Stored == kE4M3 || Stored == kE5M2;
  // Eight lanes a row where the halves of its pairs still meet in one lane, else four.
  constexpr int lanes = D / 2 % 16 == 0 ? 8 : 4, held = D / 2 / lanes;
  const int lane = lane_id(), c = lane % lanes;
#pragma unroll 1
  for (int pass = 0; pass < kSlice * lanes / 32; pass++) {
    // Rows that a pass takes together have their pieces swizzled apart.
    const int row = lanes == 8 ? 2 * (lane / 8) + pass % 2 + pass / 2 * 8 : pass * 8 + lane / 4;
    uint32_t pair[held];
    const auto at = [&](int i) { return Tile::at(row, (c + lanes * i) / 4) + (c + lanes * i) % 4 * 4; };
#pragma unroll
    for (int i = 0; i < held; i++) {
      if constexpr (narrow) {
        const int byte = 2 * (c + lanes * i);
        const uint32_t raw = *reinterpret_cast<const uint16_t*>(memory + Tile::at(row, D / 16 + byte / 16) + byte % 16);
        pair[i] = widen<T, Stored>((raw & 0xffu) | (raw & 0xff00u) << 8);
      } else {
        pair[i] = *reinterpret_cast<const uint32_t*>(memory + at(i));
      }
    }
    Row<SpreadMap<D, lanes>> view;
#pragma unroll
    for (int i = 0; i < held; i++) unpack<T>(pair[i], view.x.at[i][0], view.x.at[i][1]);
    f(row, view);
#pragma unroll
    for (int i = 0; i < held; i++) pair[i] = pack<T>(view.x.at[i][0], view.x.at[i][1]);
    if constexpr (narrow) __syncwarp();
#pragma unroll
    for (int i = 0; i < held; i++) *reinterpret_cast<uint32_t*>(memory + at(i)) = pair[i];
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

// Makes the 16 keys, or values, from ordinal `first` on ready for the products, after their copy has come in.
template <class S, class V, class Tile = typename S::KTile>
ATTNLOOM_DEVICE void prepare_keys(char* memory, const typename V::Params& params, const KeySite<V>& site,
                                  const Positions& positions, int first, const int* noted) {
  if constexpr (V::has_key_transform)
    transform_rows<S::T, S::kv, S::head_dim, Tile>(memory, [&](int row, auto& view) {
      view.each([&](int, float& x) { x *= site.k_scale; });
      V::key_transform(params, view, site.at(positions, first + row, noted + row));
    });
  else if constexpr (S::narrow) widen_rows<S::T, S::kv, S::head_dim, Tile>(memory);
}
template <class S, class V, class Tile = typename S::VTile, class Seen>
ATTNLOOM_DEVICE void prepare_values(char* memory, const typename V::Params& params, const KeySite<V>& site,
                                    const Positions& positions, int first, const int* noted, const Seen& seen) {
  if constexpr (V::has_value_transform)
    transform_rows<S::T, S::kv, S::head_dim_v, Tile>(memory, [&](int row, auto& view) {
      view.each([&](int, float& x) { x *= site.v_scale; });
      V::value_transform(params, view, site.at(positions, first + row, noted + row));
      if (!seen.sees(first + row)) view.each([](int, float& x) { x = 0.0f; });
    });
  else if constexpr (S::narrow) widen_rows<S::T, S::kv, S::head_dim_v, Tile>(memory);
}

}  // namespace attnloom::cuda
