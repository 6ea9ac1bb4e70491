// alibi: logit + slope[head] * (kv_pos - q_pos), a penalty that grows with distance.
#pragma once
#include <attnloom/variant.h>

struct Alibi {
  static constexpr bool linear_in_distance = true;

  template <class Params, class Logit>
  ATTNLOOM_FN Logit logits_transform(const Params& p, Logit logit, const attnloom::Site& site) const {
    return logit + p.slopes(site.qo_head) * site.distance;
  }
};
