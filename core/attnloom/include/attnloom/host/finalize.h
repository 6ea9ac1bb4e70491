// What happens to an output row once, when its state is whole.
#pragma once
#include "../scale.h"
#include "../state.h"
#include "rows.h"
#include "shape.h"

namespace attnloom::host {

// Joins row_init, normalises, applies the scale of V and output_transform, and writes the row of O and its LSE.
template <class S, class V>
void finalize(const RunArgs& args, const typename V::Params& params, State state, const float* o, int token,
              const Site& site) {
  float factor = 1.0f;
  if constexpr (V::use_softmax) {
    if constexpr (V::has_row_init) {
      const RowInit init = V::row_init(params, site);
      const Merged merged = merge(state, {init.m, init.d});
      state = merged.state;
      factor = merged.first;
    }
    factor = state.d == 0.0f ? 0.0f : factor / state.d;
  }
  if constexpr (!V::has_value_transform) factor *= head_scale(args.v_scale, site.kv_head);
  alignas(64) float row[S::head_dim_v];
  ATTNLOOM_LOOP
  for (int d = 0; d < S::head_dim_v; d++) row[d] = o[d] * factor;
  if constexpr (V::has_output_transform) {
    Row<HostMap<S::head_dim_v>> view{row};
    V::output_transform(params, view, site);
  }
  auto* out = static_cast<Stored<S::out>*>(args.out.data) + token * args.out.stride_token +
              site.qo_head * args.out.stride_head;
  store_row<S::out, S::head_dim_v>(row, out);
  if constexpr (V::use_softmax)
    if (args.lse) args.lse[token * args.lse_stride_token + site.qo_head] = log_sum_exp(state);
}

// Merges the partials of the i-th row of the plan's merge list, in KV order.
template <class S, class V>
void merge_row(const RunArgs& args, const typename V::Params& params, const PlanHeader& plan, int i) {
  const auto* base = reinterpret_cast<const char*>(&plan);
  const auto list = [base](int64_t offset) { return reinterpret_cast<const int32_t*>(base + offset); };
  const int* parts = list(plan.merge_part);
  const int begin = list(plan.merge_indptr)[i], end = list(plan.merge_indptr)[i + 1];
  State state;
  for (int p = begin; p < end; p++) state.m = max(state.m, args.partial_md[2 * int64_t{parts[p]}]);
  alignas(64) float o[S::head_dim_v] = {};
  for (int p = begin; p < end; p++) {
    const int64_t part = parts[p];
    ATTNLOOM_CHECK(part >= 0 && part < plan.num_part_rows, "workspace row", part);
    const float weight = V::use_softmax ? rescale(args.partial_md[2 * part], state.m) : 1.0f;
    const float* from = args.partial_o + part * S::head_dim_v;
    state.d += weight * args.partial_md[2 * part + 1];
    ATTNLOOM_LOOP
    for (int d = 0; d < S::head_dim_v; d++) o[d] += weight * from[d];
  }
  const int token = list(plan.merge_token)[i];
  const Site site = query_site(args, token, list(plan.merge_head)[i], args.num_qo_heads / args.num_kv_heads);
  finalize<S, V>(args, params, state, o, token, site);
}

}  // namespace attnloom::host
