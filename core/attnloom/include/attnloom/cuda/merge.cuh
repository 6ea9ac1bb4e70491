// The merge of partial states, in KV order, a warp a row: by whichever item of the row is done last, or, where the rows of
// one item have parts in different items, by a kernel of its own.
#pragma once
#include "unit.cuh"

namespace attnloom::cuda {

constexpr int kMergeWarps = 4, kMergeBlocks = 4;  // of a block; of a multiprocessor

// The parts of an entry of a plan's merge list, and of rows that have them in common: those of row r lie r further on.
struct Parts {
  const int32_t* rows;  // of the workspace
  int count;
  int32_t first;  // of `rows`, the one of this lane, or the last

  ATTNLOOM_DEVICE Parts(const PlanHeader& plan, const char* base, int entry) {
    const int32_t* indptr = reinterpret_cast<const int32_t*>(base + plan.merge_indptr) + entry;
    rows = reinterpret_cast<const int32_t*>(base + plan.merge_part) + indptr[0];
    count = indptr[1] - indptr[0];
    first = look_up(0);
  }

  // The one of this lane of those from `begin` on, or the last.
  ATTNLOOM_DEVICE int32_t look_up(int begin) const { return rows[min(begin + lane_id(), count - 1)]; }
};

// Other blocks write partial states: they are read from the second-level cache, where all blocks see them.
ATTNLOOM_DEVICE float2 fresh_pair(const float* at) { return __ldcg(reinterpret_cast<const float2*>(in_global(at))); }

// Over N lanes that follow each other.
template <int N>
ATTNLOOM_DEVICE float max_of_lanes(float x) {
#pragma unroll
  for (int apart = N / 2; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
  return x;
}
template <int N>
ATTNLOOM_DEVICE float sum_of_lanes(float x) {
#pragma unroll
  for (int apart = N / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}

// The row that one warp merges: its state, and its O~ over all lanes.
template <class S, class V>
struct MergedRow {
  using Map = SpreadMap<S::head_dim_v, 32>;

  State whole;
  Row<Map> row;

  ATTNLOOM_DEVICE MergedRow() {
#pragma unroll
    for (int n = 0; n < Map::held; n++) row.x.at[n][0] = row.x.at[n][1] = 0.0f;
  }

  // Adds `count` partial rows, at most N; `part` is the (lane % N)-th of them, or any. N are loaded at once: where loads
  // depend on conditions, they wait for one another.
  template <int N>
  ATTNLOOM_DEVICE void add(const RunArgs& args, uint32_t part, int count) {
    State mine;
    if (lane_id() % N < count) {
      const float2 md = fresh_pair(args.partial_md + 2 * uint64_t{part});
      mine = {md.x, md.y};
    }
    const float* first = args.partial_o + 2 * Map::unit(0);
    int apart[Map::held];
#pragma unroll
    for (int n = 0; n < Map::held; n++) apart[n] = Map::holds(n) ? 64 * n : 0;
    float2 o[N][Map::held];
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float* from = first + uint64_t{__shfl_sync(~0u, part, i)} * S::head_dim_v;
#pragma unroll
      for (int n = 0; n < Map::held; n++) o[i][n] = fresh_pair(from + apart[n]);
    }
    const float m = V::use_softmax ? fmaxf(whole.m, max_of_lanes<N>(mine.m)) : whole.m;
    const float before = V::use_softmax ? rescale(whole.m, m) : 1.0f, weight = V::use_softmax ? rescale(mine.m, m) : 1.0f;
    whole = {m, whole.d * before + sum_of_lanes<N>(weight * mine.d)};
#pragma unroll
    for (int n = 0; n < Map::held; n++) row.x.at[n][0] *= before, row.x.at[n][1] *= before;
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (i >= count) break;
      const float w = __shfl_sync(~0u, weight, i);
#pragma unroll
      for (int n = 0; n < Map::held; n++) row.x.at[n][0] += w * o[i][n].x, row.x.at[n][1] += w * o[i][n].y;
    }
  }
};

// Merges the row that lies `r` on from the entry of `parts`, by one warp, in KV order. Most rows have few parts.
template <class S, class V>
ATTNLOOM_DEVICE void merge_row(const RunArgs& args, const typename V::Params& params, const Parts& parts, int r, int token,
                               const Site& site) {
  constexpr int kMany = MergedRow<S, V>::Map::held > 2 ? 8 : 16, kFew = 4;
  MergedRow<S, V> merged;
  int listed = parts.first, held = 32;  // parts that the lanes have looked up, and how many are left of them
#pragma unroll 1
  for (int begin = 0; begin < parts.count;) {
    const int left = parts.count - begin, at_once = left > kFew ? kMany : kFew, count = min(left, at_once);
    const uint32_t part = __shfl_sync(~0u, listed, 32 - held + lane_id() % at_once) + r;
    if (at_once == kFew) merged.template add<kFew>(args, part, count);
    else merged.template add<kMany>(args, part, count);
    begin += at_once;
    held -= at_once;
    if (held == 0) {
      held = 32;
      listed = parts.look_up(begin);
    }
  }
  write_row<S, V, 32>(args, params, merged.whole, merged.row, token, site, true);
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
__global__ __launch_bounds__(32 * kMergeWarps, kMergeBlocks) void merge_kernel(const __grid_constant__ RunArgs args,
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
