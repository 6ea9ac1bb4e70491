// The merge of partial states, in KV order, half a warp a row: by whichever item of the row is done last, or, where the
// rows of one item have parts in different items, by a kernel of its own.
#pragma once
#include "unit.cuh"

namespace attnloom::cuda {

constexpr int kMergeWarps = 4, kMergeBlocks = 2;  // of a block; of a multiprocessor

// Other blocks write partial states: they are read from the second-level cache, where all blocks see them.
template <class T>
ATTNLOOM_DEVICE T fresh(const float* at) { return __ldcg(reinterpret_cast<const T*>(in_global(at))); }

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

// Of `parts`, the one from `begin` on that this lane of its half of the warp looks up, or the last.
ATTNLOOM_DEVICE int32_t look_up(const Parts& parts, int begin) {
  return parts.rows[min(begin + lane_id() % kHalfWarp, parts.count - 1)];
}

// `x` of lane i of this half of the warp.
template <class T>
ATTNLOOM_DEVICE T of_half(T x, int i) { return __shfl_sync(~0u, x, (lane_id() & kHalfWarp) + i); }

// The row that half a warp merges: its state, and its O~ over all lanes of the half.
template <class S, class V>
struct MergedRow {
  using Map = HalfWarpMap<S>;

  State whole;
  Row<Map> row;

  ATTNLOOM_DEVICE MergedRow() {
#pragma unroll
    for (int n = 0; n < Map::held; n++) clear(row.x.at[n]);
  }

  // Adds `count` partial rows, at most N; `part` is the (lane % N)-th of them, or any. N are loaded at once: where loads
  // depend on conditions, they wait for one another.
  template <int N>
  ATTNLOOM_DEVICE void add_parts(const RunArgs& args, uint32_t part, int count) {
    State mine;
    if (lane_id() % N < count) {
      const float2 md = fresh<float2>(args.partial_md + 2 * uint64_t{part});
      mine = {md.x, md.y};
    }
    const float* first = here(args.partial_o + Map::width * Map::unit(0));
    float4 o[N][Map::held];
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float* from = first + uint64_t{of_half(part, i)} * S::head_dim_v;
#pragma unroll
      for (int n = 0; n < Map::held; n++) o[i][n] = fresh<float4>(from + (Map::holds(n) ? Map::width * Map::lanes * n : 0));
    }
    const float m = V::use_softmax ? fmaxf(whole.m, max_of_lanes<N>(mine.m)) : whole.m;
    const float before = V::use_softmax ? rescale(whole.m, m) : 1.0f, weight = V::use_softmax ? rescale(mine.m, m) : 1.0f;
    whole = {m, whole.d * before + sum_of_lanes<N>(weight * mine.d)};
#pragma unroll
    for (int n = 0; n < Map::held; n++)
#pragma unroll
      for (float& x : row.x.at[n]) x *= before;
    float weights[N];  // all at once: between sums each would be waited for
#pragma unroll
    for (int i = 0; i < N; i++) weights[i] = of_half(weight, i);
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (i >= count) break;
#pragma unroll
      for (int n = 0; n < Map::held; n++) add_scaled(row.x.at[n], weights[i], o[i][n]);
    }
  }
};

// Merges a row a half warp, in KV order: the one that lies `r` on from the entry of `parts`, of which `listed` are those
// looked up first; `most`: the parts of the half that has more. Most rows have few.
template <class S, class V>
ATTNLOOM_DEVICE void merge_row(const RunArgs& args, const typename V::Params& params, const Parts& parts, int32_t listed, int most,
                               int r, int token, const Site& site, bool real) {
  constexpr int kMany = MergedRow<S, V>::Map::held > 2 ? 8 : kHalfWarp, kFew = 4;
  MergedRow<S, V> merged;
#pragma unroll 1
  for (int begin = 0; begin < most; begin += kHalfWarp) {
    const int32_t now = listed;
    if (begin + kHalfWarp < most) listed = look_up(parts, begin + kHalfWarp);
    if (most - begin <= kFew) {
      merged.template add_parts<kFew>(args, of_half(now, lane_id() % kFew) + r, parts.count - begin);
    } else {
#pragma unroll 1
      for (int i = 0; i < min(kHalfWarp, most - begin); i += kMany)
        merged.template add_parts<kMany>(args, of_half(now, i + lane_id() % kMany) + r, parts.count - begin - i);
    }
  }
  write_row<S, V>(args, params, merged.whole, merged.row, token, site, real);
}

// Adds 1, and returns what was there. What the block wrote before is seen by those who add later, and what they wrote
// before by this block after its next barrier.
ATTNLOOM_DEVICE int count_arrival(int* at) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(at) : "memory");
  return before;
}

// After a unit's partial states are written: merges its rows if they were the last. Every thread of the block comes here.
template <class S, class V, class R>
ATTNLOOM_DEVICE void merge_if_last(const Unit<S, V, R>& unit) {
  Merging& merging = unit.merging;
  const Parts parts = merging.parts;
  const int32_t listed = look_up(parts, 0);
  sync<S>();
  if (is_first_thread()) {
    merging.is_last = count_arrival(merging.arrived) + 1 == parts.count;
    if (merging.is_last) *merging.arrived = 0;  // for the next run
  }
  sync<S>();
  if (!merging.is_last) return;
  unit.by_half_warps([&](int r, bool real) {
    const Site site = unit.rows.site(r, unit.head);
    merge_row<S, V>(unit.args, unit.params, parts, listed, parts.count, r, unit.rows.token[r], site, real);
  });
}

template <class S, class V>
__global__ __launch_bounds__(32 * kMergeWarps, kMergeBlocks) void merge_kernel(const __grid_constant__ RunArgs args,
                                                                 const __grid_constant__ typename V::Params params) {
  const char* base = static_cast<const char*>(args.plan);
  const auto& plan = *static_cast<const PlanHeader*>(args.plan);
  const IndexView& index = *args.device_index;
  const int entries = plan.fused_merge ? 0 : plan.num_merge, group = args.num_qo_heads / args.num_kv_heads;
  // What the plan says is known before the partial states are: only those are waited for.
  int first = 2 * (blockIdx.x * kMergeWarps + warp_id());
  if (first >= entries) return wait_for_kernel_before();
  for (bool waited = false; first < entries; first += 2 * gridDim.x * kMergeWarps, waited = true) {
    const int second = first + lane_id() / kHalfWarp;
    const bool real = second < entries;
    const int entry = real ? second : first;
    const Parts parts(plan, base, entry);
    const int32_t listed = look_up(parts, 0);
    const int most = max(parts.count, __shfl_xor_sync(~0u, parts.count, kHalfWarp));
    const int token = reinterpret_cast<const int32_t*>(base + plan.merge_token)[entry];
    const int head = reinterpret_cast<const int32_t*>(base + plan.merge_head)[entry];
    const Site site = query_site(index, index.token_request[token], token, head, group);
    if (!waited) wait_for_kernel_before();
    merge_row<S, V>(args, params, parts, listed, most, 0, token, site, real);
  }
}

}  // namespace attnloom::cuda
