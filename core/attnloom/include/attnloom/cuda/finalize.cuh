// What happens to an output row once, when its state is whole; and how partial states are written.
#pragma once
#include "../scale.h"
#include "../state.h"
#include "row_map.cuh"

namespace attnloom::cuda {

// Two neighbouring elements of the output.
template <DType T>
ATTNLOOM_DEVICE void store_pair(void* out, int64_t at, float a, float b) {
  if constexpr (T == kF32) *reinterpret_cast<float2*>(in_global(static_cast<float*>(out)) + at) = {a, b};
  else *reinterpret_cast<uint32_t*>(in_global(static_cast<uint16_t*>(out)) + at) = pack<T>(a, b);
}

// Writes a row of the output that lies over G lanes, where it is `real`.
template <class S, int G>
ATTNLOOM_DEVICE void store_row(void* out, int64_t at, const Row<SpreadMap<S::head_dim_v, G>>& row, bool real) {
  using Map = SpreadMap<S::head_dim_v, G>;
  if constexpr (G == 4 && S::out != kF32) {
    // Neighbouring lanes swap pairs, so that each has two of the same eight elements and a row's sectors are written whole.
    const int lane = lane_id() % 4, odd = lane % 2;
    uint16_t* to = in_global(static_cast<uint16_t*>(out)) + at + 8 * odd + 2 * (lane - odd);
#pragma unroll
    for (int i = 0; i < Map::held; i += 2) {
      const uint32_t first = pack<S::out>(row.x.at[i][0], row.x.at[i][1]);
      const uint32_t second = pack<S::out>(row.x.at[i + 1][0], row.x.at[i + 1][1]);
      const uint32_t other = __shfl_xor_sync(~0u, odd ? first : second, 1);
      if (real) *reinterpret_cast<uint2*>(to + 8 * i) = odd ? uint2{other, second} : uint2{first, other};
    }
  } else {
#pragma unroll
    for (int i = 0; i < Map::held; i++)
      if (real && Map::holds(i)) store_pair<S::out>(out, at + 2 * Map::unit(i), row.x.at[i][0], row.x.at[i][1]);
  }
}

// Joins row_init, normalises, applies the scale of V and output_transform, and writes the row of O and its LSE. The row
// lies over G lanes; all lanes of the warp come here together, each with a row, and `real` ones write.
template <class S, class V, int G>
ATTNLOOM_DEVICE void write_row(const RunArgs& args, const typename V::Params& params, State state,
                               Row<SpreadMap<S::head_dim_v, G>>& row, int token, const Site& site, bool real) {
  using Map = SpreadMap<S::head_dim_v, G>;
  float factor = 1.0f;
  if constexpr (V::use_softmax) {
    if constexpr (V::has_row_init) {
      const RowInit init = V::row_init(params, site);
      const Merged merged = merge(state, {init.m, init.d});
      state = merged.state;
      factor = merged.first;
    }
    factor = state.d == 0.0f ? 0.0f : __fdividef(factor, state.d);
  }
  if constexpr (!V::has_value_transform) factor *= head_scale(args.v_scale, site.kv_head);
#pragma unroll
  for (int i = 0; i < Map::held; i++) row.x.at[i][0] *= factor, row.x.at[i][1] *= factor;
  if constexpr (V::has_output_transform) V::output_transform(params, row, site);
  store_row<S, G>(args.out.data, token * args.out.stride_token + site.qo_head * args.out.stride_head, row, real);
  if constexpr (V::use_softmax)
    if (real && args.lse && Map::unit(0) == 0) args.lse[token * args.lse_stride_token + site.qo_head] = log_sum_exp(state);
}

// Writes a partial row and its state to row `part` of the workspace.
template <class S, int G>
ATTNLOOM_DEVICE void write_part(const RunArgs& args, State state, const Row<SpreadMap<S::head_dim_v, G>>& row, int64_t part) {
  using Map = SpreadMap<S::head_dim_v, G>;
  float* o = in_global(args.partial_o) + part * S::head_dim_v;
#pragma unroll
  for (int i = 0; i < Map::held; i++)
    if (Map::holds(i)) *reinterpret_cast<float2*>(o + 2 * Map::unit(i)) = {row.x.at[i][0], row.x.at[i][1]};
  if (Map::unit(0) == 0) *reinterpret_cast<float2*>(in_global(args.partial_md) + 2 * part) = {state.m, state.d};
}

}  // namespace attnloom::cuda
