// causal: a query sees the keys at its own position and before.
#pragma once
#include <attnloom/variant.h>

namespace attnloom::variants {

struct Causal {
  static constexpr bool range_monotone = true;
  static constexpr bool range_head_uniform = true;

  template <class Params>
  ATTNLOOM_FN Range kv_range(const Params&, const Site& site) const {
    return {kPosMin, saturate(int64_t{site.q_pos} + 1)};
  }
};

}  // namespace attnloom::variants
