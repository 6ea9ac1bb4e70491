// sigmoid: the weight of a pair is sigmoid(scale * logit + bias), and no row is normalised.
#pragma once
#include <attnloom/variant.h>

struct Sigmoid {
  static constexpr bool use_softmax = false;

  template <class Params>
  ATTNLOOM_FN float logits_transform(const Params& p, float logit, const attnloom::Site&) const {
    return attnloom::sigmoid(p.scale * logit + p.bias);
  }
};
