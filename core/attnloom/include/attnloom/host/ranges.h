// The keys that some query tokens of a block row may see: what the planner cuts up.
#pragma once
#include "rows.h"

namespace attnloom::host {

// At most two intervals of key ordinals. A third is joined to the nearer one, the gap between them included.
struct Union {
  int count = 0;
  Range part[2];

  void add(Range r) {
    if (r.lo >= r.hi) return;
    if (count == 0) {
      part[count++] = r;
      return;
    }
    for (int i = 0; i < count; i++)
      if (r.lo <= part[i].hi && part[i].lo <= r.hi) {
        part[i] = {min(part[i].lo, r.lo), max(part[i].hi, r.hi)};
        if (count == 2 && part[0].hi >= part[1].lo) {
          part[0] = {min(part[0].lo, part[1].lo), max(part[0].hi, part[1].hi)};
          count = 1;
        }
        return;
      }
    if (count == 1) {
      part[1] = r;
      if (r.lo < part[0].lo) part[1] = part[0], part[0] = r;
      count = 2;
    } else if (r.lo < part[0].lo) {
      part[0].lo = r.lo;
    } else if (part[1].lo < r.lo) {
      part[1].hi = r.hi;
    } else if (r.lo - part[0].hi < part[1].lo - r.hi) {
      part[0].hi = r.hi;
    } else {
      part[1].lo = r.lo;
    }
  }
};

// The union, or a superset, of what tokens [q_begin, q_begin + q_tokens) of a block row see, as ordinals of its keys,
// over all heads. Returns how many intervals (0 to 2) it wrote: sorted, disjoint, lo and hi of each.
template <class V>
int ranges(const RunArgs& args, int level_index, int row, int q_begin, int q_tokens, int32_t* bounds) {
  const LevelView& level = args.index.levels[level_index];
  const auto& params = *static_cast<const typename V::Params*>(args.params);
  const int kv_len = level.kv_len[row];
  const int64_t kv_start = level.kv_start[row];
  const int group = args.num_qo_heads / args.num_kv_heads;
  const auto token = [&](int t) { return level.row_tokens ? level.row_tokens[q_begin + t] : q_begin + t; };
  Union all;
  if (q_tokens <= 0) return 0;
  if (!V::has_kv_range || positions_listed(level, row)) {
    all.add({0, kv_len});
  } else {
    const auto visible = [&](int t, int head) { return V::kv_range(params, query_site(args, token(t), head, group)); };
    const auto ordinals = [&](Range r) {
      return Range{clamp_to(r.lo - kv_start, 0, kv_len), clamp_to(r.hi - kv_start, 0, kv_len)};
    };
    const int heads = V::range_head_uniform ? 1 : args.num_qo_heads;
    const int32_t* request = args.index.token_request;
    const bool in_order = V::range_monotone && !args.index.q_pos && token(q_tokens - 1) - token(0) == q_tokens - 1 &&
                          request[token(0)] == request[token(q_tokens - 1)];
    for (int head = 0; head < heads; head++) {
      const auto first = visible(0, head), last = visible(q_tokens - 1, head);
      if (in_order && first.count == 1 && last.count == 1) {
        all.add(ordinals({first.ranges[0].lo, last.ranges[0].hi}));
        continue;
      }
      for (int t = 0; t < q_tokens; t++) {
        const auto set = visible(t, head);
        for (int i = 0; i < set.count; i++) all.add(ordinals(set.ranges[i]));
      }
    }
  }
  for (int i = 0; i < all.count; i++) bounds[2 * i] = all.part[i].lo, bounds[2 * i + 1] = all.part[i].hi;
  return all.count;
}

}  // namespace attnloom::host
