// The merge of partial states, in KV order: four warps a row, each some of the parts, then the warps in order.
#pragma once
#include "finalize.cuh"

namespace attnloom::cuda {

constexpr int kMergeWarps = 4;

// One entry of a plan's merge list.
struct Merge {
  const int32_t* parts;
  int begin, end, token, head;

  ATTNLOOM_DEVICE Merge(const PlanHeader& plan, int i) {
    const char* base = reinterpret_cast<const char*>(&plan);
    const auto list = [base](int64_t offset) { return reinterpret_cast<const int32_t*>(base + offset); };
    parts = list(plan.merge_part);
    begin = list(plan.merge_indptr)[i], end = list(plan.merge_indptr)[i + 1];
    token = list(plan.merge_token)[i], head = list(plan.merge_head)[i];
  }
};

template <class S, class V>
ATTNLOOM_DEVICE void merge_row(const RunArgs& args, const typename V::Params& params, const Merge& merge, const Site& site,
                               float* scratch, float* scratch_d) {
  using Map = SpreadMap<S::head_dim_v, 32>;
  const int32_t* parts = merge.parts;
  const int begin = merge.begin, end = merge.end, warp = warp_id();

  State state;
  for (int p = begin + lane_id(); p < end; p += 32) state.m = max(state.m, args.partial_md[2 * int64_t{parts[p]}]);
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) state.m = fmaxf(state.m, __shfl_xor_sync(~0u, state.m, apart));

  Row<Map> row;
#pragma unroll
  for (int n = 0; n < Map::held; n++) row.x.at[n][0] = row.x.at[n][1] = 0.0f;
#pragma unroll 4
  for (int p = begin + warp; p < end; p += kMergeWarps) {
    const int64_t part = parts[p];
    const float2 md = *reinterpret_cast<const float2*>(args.partial_md + 2 * part);
    const float weight = V::use_softmax ? rescale(md.x, state.m) : 1.0f;
    state.d += weight * md.y;
    const float* from = args.partial_o + part * S::head_dim_v;
#pragma unroll
    for (int n = 0; n < Map::held; n++) {
      if (!Map::holds(n)) continue;
      const float2 x = *reinterpret_cast<const float2*>(from + 2 * Map::unit(n));
      row.x.at[n][0] += weight * x.x;
      row.x.at[n][1] += weight * x.y;
    }
  }
  __syncthreads();
  if (warp > 0) {
#pragma unroll
    for (int n = 0; n < Map::held; n++)
      if (Map::holds(n))
        *reinterpret_cast<float2*>(scratch + (warp - 1) * S::head_dim_v + 2 * Map::unit(n)) = {row.x.at[n][0], row.x.at[n][1]};
    if (lane_id() == 0) scratch_d[warp - 1] = state.d;
  }
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int w = 0; w < kMergeWarps - 1; w++) {
    state.d += scratch_d[w];
#pragma unroll
    for (int n = 0; n < Map::held; n++) {
      if (!Map::holds(n)) continue;
      const float2 x = *reinterpret_cast<const float2*>(scratch + w * S::head_dim_v + 2 * Map::unit(n));
      row.x.at[n][0] += x.x;
      row.x.at[n][1] += x.y;
    }
  }
  write_row<S, V, 32>(args, params, state, row, merge.token, site, true);
}

// Waits for the kernel before this one, where this one may begin earlier.
ATTNLOOM_DEVICE void wait_for_partials() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class S, class V>
__global__ __launch_bounds__(32 * kMergeWarps) void merge_kernel(const __grid_constant__ RunArgs args,
                                                                 const __grid_constant__ typename V::Params params) {
  __shared__ float scratch[(kMergeWarps - 1) * S::head_dim_v];
  __shared__ float scratch_d[kMergeWarps - 1];
  // What the plan says is known before the partial states are: only those are waited for.
  const auto& plan = *static_cast<const PlanHeader*>(args.plan);
  const int group = args.num_qo_heads / args.num_kv_heads;
  bool waited = false;
  for (int i = blockIdx.x; i < plan.num_merge; i += gridDim.x) {
    const Merge merge(plan, i);
    const Site site = query_site(*args.device_index, merge.token, merge.head, group);
    if (!waited) wait_for_partials();
    waited = true;
    merge_row<S, V>(args, params, merge, site, scratch, scratch_d);
  }
  if (!waited) wait_for_partials();
}

}  // namespace attnloom::cuda
