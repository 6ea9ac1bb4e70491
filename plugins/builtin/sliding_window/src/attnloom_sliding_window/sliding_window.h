// sliding_window: q_pos - left <= kv_pos <= q_pos + right; -1 leaves a side open.
#pragma once
#include <attnloom/variant.h>

struct SlidingWindow {
  static constexpr bool range_monotone = true;
  static constexpr bool range_head_uniform = true;

  template <class Params>
  ATTNLOOM_FN attnloom::Range kv_range(const Params& p, const attnloom::Site& site) const {
    const int64_t pos = site.q_pos;
    return {p.left < 0 ? attnloom::kPosMin : attnloom::saturate(pos - p.left),
            p.right < 0 ? attnloom::kPosMax : attnloom::saturate(pos + p.right + 1)};
  }
};
