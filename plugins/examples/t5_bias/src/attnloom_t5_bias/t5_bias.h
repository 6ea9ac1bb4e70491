// t5_bias: logit + bias[bucket(kv_pos - q_pos), head]. Buckets are looked up, so that no logarithm decides between two.
#pragma once
#include <attnloom/variant.h>

namespace attnloom_t5_bias {

struct T5Bias {
  template <class Params>
  ATTNLOOM_FN float logits_transform(const Params& p, float logit, const attnloom::Site& site) const {
    const int last = static_cast<int>(p.buckets.shape[0] / 2);
    const int distance = attnloom::min(attnloom::max(site.kv_pos - site.q_pos, -last), last);
    return logit + p.bias(p.buckets(distance + last), site.qo_head);
  }
};

}  // namespace attnloom_t5_bias
