// Row functors over rows in shared memory, and fp8 rows made into 16-bit ones, in place.
#pragma once
#include "loader.cuh"
#include "narrow.cuh"
#include "row_map.cuh"

namespace attnloom::cuda {

// Rows [0, 16) at `memory`, by one warp. f(row, view) sees 32-bit floats; nothing is called for `Identity`.
struct Identity {};

template <DType T, DType Stored, int D, class F>
ATTNLOOM_DEVICE void transform_rows(char* memory, F f) {
  using Tile = Tiled<D>;
  constexpr bool narrow = Stored == kE4M3 || Stored == kE5M2;
  constexpr bool same = std::is_same_v<F, Identity>;
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
    if constexpr (!same) {
      Row<SpreadMap<D, lanes>> view;
#pragma unroll
      for (int i = 0; i < held; i++) unpack<T>(pair[i], view.x.at[i][0], view.x.at[i][1]);
      f(row, view);
#pragma unroll
      for (int i = 0; i < held; i++) pair[i] = pack<T>(view.x.at[i][0], view.x.at[i][1]);
    }
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
template <class S, class V>
ATTNLOOM_DEVICE void prepare_keys(char* memory, const typename V::Params& params, const KeySite<V>& site,
                                  const Positions& positions, int first, const int* noted) {
  if constexpr (V::has_key_transform)
    transform_rows<S::T, S::kv, S::head_dim>(memory, [&](int row, auto& view) {
      view.each([&](int, float& x) { x *= site.k_scale; });
      V::key_transform(params, view, site.at(positions, first + row, noted + row));
    });
  else if constexpr (S::narrow) transform_rows<S::T, S::kv, S::head_dim>(memory, Identity{});
}
template <class S, class V, class Seen>
ATTNLOOM_DEVICE void prepare_values(char* memory, const typename V::Params& params, const KeySite<V>& site,
                                    const Positions& positions, int first, const int* noted, const Seen& seen) {
  if constexpr (V::has_value_transform)
    transform_rows<S::T, S::kv, S::head_dim_v>(memory, [&](int row, auto& view) {
      view.each([&](int, float& x) { x *= site.v_scale; });
      V::value_transform(params, view, site.at(positions, first + row, noted + row));
      if (!seen.sees(first + row)) view.each([](int, float& x) { x = 0.0f; });
    });
  else if constexpr (S::narrow) transform_rows<S::T, S::kv, S::head_dim_v>(memory, Identity{});
}

}  // namespace attnloom::cuda
