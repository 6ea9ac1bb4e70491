// soft_cap: cap * tanh(logit / cap), the saturation of Gemma 2 and Grok-1.
#pragma once
#include <attnloom/variant.h>

struct SoftCap {
  template <class Params, class Logit>
  ATTNLOOM_FN Logit logits_transform(const Params& p, Logit logit, const attnloom::Site&) const {
    return attnloom::soft_clamp(logit, p.cap);
  }
};
