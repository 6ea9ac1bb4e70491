// What happens to an output row once, when its state is whole; and how partial states are written.
#pragma once
#include "../scale.h"
#include "../state.h"
#include "row_map.cuh"

namespace attnloom::cuda {

// A row that is joined or merged lies over half a warp, so that a warp has two of them.
constexpr int kHalfWarp = 16;
template <class S>
using HalfWarpMap = SpreadMap<S::head_dim_v, kHalfWarp, 4>;

ATTNLOOM_DEVICE float2 packed(const float (&x)[2]) { return {x[0], x[1]}; }
ATTNLOOM_DEVICE float4 packed(const float (&x)[4]) { return {x[0], x[1], x[2], x[3]}; }
ATTNLOOM_DEVICE void clear(float (&x)[4]) { x[0] = x[1] = x[2] = x[3] = 0.0f; }
ATTNLOOM_DEVICE void add_scaled(float (&x)[4], float weight, float4 more) {
  x[0] += weight * more.x, x[1] += weight * more.y, x[2] += weight * more.z, x[3] += weight * more.w;
}

// Neighbouring elements of the output, which begin at a multiple of 8 bytes where they are four.
template <DType T, int W>
ATTNLOOM_DEVICE void store_unit(void* out, int64_t at, const float (&x)[W]) {
  if constexpr (T == kF32) {
    float2* to = reinterpret_cast<float2*>(in_global(static_cast<float*>(out)) + at);
#pragma unroll
    for (int e = 0; e < W; e += 2) to[e / 2] = {x[e], x[e + 1]};
  } else {
    uint16_t* to = in_global(static_cast<uint16_t*>(out)) + at;
    if constexpr (W == 4) *reinterpret_cast<uint2*>(to) = {pack<T>(x[0], x[1]), pack<T>(x[2], x[3])};
    else *reinterpret_cast<uint32_t*>(to) = pack<T>(x[0], x[1]);
  }
}

// Writes a row of the output that lies over some lanes, where it is `real`.
template <class S, class Map>
ATTNLOOM_DEVICE void store_row(void* out, int64_t at, const Row<Map>& row, bool real) {
  if constexpr (Map::lanes == 4 && S::out != kF32) {
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
      if (real && Map::holds(i)) store_unit<S::out>(out, at + Map::width * Map::unit(i), row.x.at[i]);
  }
}

// Joins row_init to the state of a whole row, and tells what its O~ is multiplied by: normalised, with the scale of V.
template <class V>
ATTNLOOM_DEVICE float finish_state(const RunArgs& args, const typename V::Params& params, State& state, const Site& site) {
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
  return factor;
}

// Multiplies O~, applies output_transform, and writes the row of O and its LSE, of a finished state. The row lies over some lanes;
// all lanes of the warp come here together, each with a row, and `real` ones write.
template <class S, class V, class Map>
ATTNLOOM_DEVICE void write_finished_row(const RunArgs& args, const typename V::Params& params, const State& state, float factor,
                                        Row<Map>& row, int token, const Site& site, bool real) {
#pragma unroll
  for (int i = 0; i < Map::held; i++)
#pragma unroll
    for (float& x : row.x.at[i]) x *= factor;
  if constexpr (V::has_output_transform) V::output_transform(params, row, site);
  store_row<S>(args.out.data, token * args.out.stride_token + site.qo_head * args.out.stride_head, row, real);
  if constexpr (V::use_softmax)
    if (real && args.lse && Map::unit(0) == 0) args.lse[token * args.lse_stride_token + site.qo_head] = log_sum_exp(state);
}

// The same of a row whose state is whole.
template <class S, class V, class Map>
ATTNLOOM_DEVICE void write_row(const RunArgs& args, const typename V::Params& params, State state, Row<Map>& row, int token,
                               const Site& site, bool real) {
  const float factor = finish_state<V>(args, params, state, site);
  write_finished_row<S, V>(args, params, state, factor, row, token, site, real);
}

// Writes a partial row and its state to row `part` of the workspace.
template <class S, class Map>
ATTNLOOM_DEVICE void write_part(const RunArgs& args, State state, const Row<Map>& row, int64_t part) {
  using Elements = decltype(packed(row.x.at[0]));
  float* o = in_global(args.partial_o) + part * S::head_dim_v;
#pragma unroll
  for (int i = 0; i < Map::held; i++)
    if (Map::holds(i)) *reinterpret_cast<Elements*>(o + Map::width * Map::unit(i)) = packed(row.x.at[i]);
  if (Map::unit(0) == 0) *reinterpret_cast<float2*>(in_global(args.partial_md) + 2 * part) = {state.m, state.d};
}

}  // namespace attnloom::cuda
