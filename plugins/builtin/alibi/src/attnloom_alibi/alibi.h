// alibi: logit + slope[head] * (kv_pos - q_pos), a penalty that grows with distance.
#pragma once
#include <attnloom/variant.h>

struct Alibi {
  template <class Params>
  ATTNLOOM_FN float logits_transform(const Params& p, float logit, const attnloom::Site& site) const {
    return logit + p.slopes(site.qo_head) * site.distance;
  }
};
