// The merge of partial states, in KV order, a warp a row: by whichever item of the row is done last, or, where the rows of
// one item have parts in different items, by a kernel of its own.
#pragma once
#include "unit.cuh"

namespace attnloom::cuda {

constexpr int kMergeWarps = 4;

// The parts of an entry of a plan's merge list, and of rows that have them in common: those of row r lie r further on.
struct Parts {
  const int32_t* rows;  // of the workspace
  int count;
  int32_t first;  // of `rows`, the one of this lane

  ATTNLOOM_DEVICE Parts(const PlanHeader& plan, const char* base, int entry) {
    const int32_t* indptr = reinterpret_cast<const int32_t*>(base + plan.merge_indptr) + entry;
    rows = reinterpret_cast<const int32_t*>(base + plan.merge_part) + indptr[0];
    count = indptr[1] - indptr[0];
    first = lane_id() < count ? rows[lane_id()] : 0;
  }
};

// Other blocks write partial states: they are read from the second-level cache, where all blocks see them.
ATTNLOOM_DEVICE float2 fresh_pair(const float* at) { return __ldcg(reinterpret_cast<const float2*>(in_global(at))); }

ATTNLOOM_DEVICE float warp_max(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
  return x;
}
ATTNLOOM_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}

// Merges the row that lies `r` on from the entry of `parts`, by one warp, in KV order: some parts at a time, whose states
// lie a lane each and whose O~ all lanes share.
template <class S, class V>
ATTNLOOM_DEVICE void merge_row(const RunArgs& args, const typename V::Params& params, const Parts& parts, int r, int token,
                               const Site& site) {
  using Map = SpreadMap<S::head_dim_v, 32>;
  constexpr int kAtATime = Map::held > 2 ? 8 : 16;
  const int lane = lane_id();
  State whole;
  Row<Map> row;
#pragma unroll
  for (int n = 0; n < Map::held; n++) row.x.at[n][0] = row.x.at[n][1] = 0.0f;
#pragma unroll 1
  for (int begin = 0; begin < parts.count; begin += kAtATime) {
    const int left = min(parts.count - begin, kAtATime);
    const int part = begin == 0 ? parts.first : parts.rows[begin + min(lane, left - 1)];
    State mine;
    if (lane < left) {
      const float2 md = fresh_pair(args.partial_md + 2 * int64_t{part + r});
      mine = {md.x, md.y};
    }
    float2 o[kAtATime][Map::held];
#pragma unroll
    for (int i = 0; i < kAtATime; i++) {
      const float* from = args.partial_o + int64_t{__shfl_sync(~0u, part, i) + r} * S::head_dim_v;
#pragma unroll
      for (int n = 0; n < Map::held; n++)
        o[i][n] = i < left && Map::holds(n) ? fresh_pair(from + 2 * Map::unit(n)) : float2{0.0f, 0.0f};
    }
    const float m = V::use_softmax ? fmaxf(whole.m, warp_max(mine.m)) : whole.m;
    const float before = V::use_softmax ? rescale(whole.m, m) : 1.0f, weight = V::use_softmax ? rescale(mine.m, m) : 1.0f;
    whole = {m, whole.d * before + warp_sum(weight * mine.d)};
#pragma unroll
    for (int n = 0; n < Map::held; n++) row.x.at[n][0] *= before, row.x.at[n][1] *= before;
#pragma unroll
    for (int i = 0; i < kAtATime; i++) {
      if (i >= left) break;
      const float w = __shfl_sync(~0u, weight, i);
#pragma unroll
      for (int n = 0; n < Map::held; n++) row.x.at[n][0] += w * o[i][n].x, row.x.at[n][1] += w * o[i][n].y;
    }
  }
  write_row<S, V, 32>(args, params, whole, row, token, site, true);
}

// Adds 1, and returns what was there. What the block wrote before is seen by those who add later, and what they wrote
// before by this block after its next barrier.
ATTNLOOM_DEVICE int arrive(int* at) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(at) : "memory");
  return before;
}

// After a unit's partial states are written: merges its rows if they were the last. Every thread of the block comes here.
template <class S, class V, class R>
ATTNLOOM_DEVICE void merge_if_last(const Unit<S, V, R>& unit, const PlanHeader& plan, const char* base, int& is_last) {
  const int entry = unit.item.merge_id + (unit.head - unit.item.head0) * unit.group;
  const Parts parts(plan, base, entry);
  int* arrived = const_cast<int*>(reinterpret_cast<const int*>(base + plan.arrived)) + entry / unit.group;
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = arrive(arrived) + 1 == parts.count;
    if (is_last) *arrived = 0;  // for the next run
  }
  __syncthreads();
  if (!is_last) return;
#pragma unroll 1
  for (int r = warp_id(); r < unit.count; r += S::warps)
    merge_row<S, V>(unit.args, unit.params, parts, r, unit.rows.token[r], unit.rows.site(r, unit.head));
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
  const char* base = static_cast<const char*>(args.plan);
  const auto& plan = *static_cast<const PlanHeader*>(args.plan);
  const IndexView& index = *args.device_index;
  const int entries = plan.fused_merge ? 0 : plan.num_merge, group = args.num_qo_heads / args.num_kv_heads;
  // What the plan says is known before the partial states are: only those are waited for.
  int entry = blockIdx.x * kMergeWarps + warp_id();
  if (entry >= entries) return wait_for_partials();
  for (bool waited = false; entry < entries; entry += gridDim.x * kMergeWarps, waited = true) {
    const Parts parts(plan, base, entry);
    const int token = reinterpret_cast<const int32_t*>(base + plan.merge_token)[entry];
    const int head = reinterpret_cast<const int32_t*>(base + plan.merge_head)[entry];
    const Site site = query_site(index, index.token_request[token], token, head, group);
    if (!waited) wait_for_partials();
    merge_row<S, V>(args, params, parts, 0, token, site);
  }
}

}  // namespace attnloom::cuda
