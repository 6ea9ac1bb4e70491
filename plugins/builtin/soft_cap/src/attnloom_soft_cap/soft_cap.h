// soft_cap: cap * tanh(logit / cap), the saturation of Gemma 2 and Grok-1.
#pragma once
#include <attnloom/variant.h>

struct SoftCap {
  template <class Params>
  ATTNLOOM_FN float logits_transform(const Params& p, float logit, const attnloom::Site&) const {
    return p.cap * attnloom::tanh(logit / p.cap);
  }
};
