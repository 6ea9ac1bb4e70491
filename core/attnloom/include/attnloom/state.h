// The state of an output row's softmax: the largest logit so far and the weights' sum relative to it. With the row's
// O~ = sum of exp(logit - m) * V it is what a partial holds; states of disjoint key sets merge in any grouping.
#pragma once
#include "variant.h"

namespace attnloom {

struct State {
  float m = -inf;
  float d = 0.0f;
};

// The point that exponents are taken from: m, or 0 where nothing was visible, so that -inf - m stays -inf.
ATTNLOOM_FN float pivot(float m) { return m == -inf ? 0.0f : m; }

// What O~ and d of a state of maximum `from` are multiplied by when the maximum becomes `to`.
ATTNLOOM_FN float rescale(float from, float to) { return from == to ? 1.0f : attnloom::exp(from - pivot(to)); }

// `state` and one that comes after it; the factors bring their O~ to the new maximum.
struct Merged {
  State state;
  float first, second;
};
ATTNLOOM_FN Merged merge(State a, State b) {
  const float m = max(a.m, b.m);
  const float first = rescale(a.m, m), second = rescale(b.m, m);
  return {{m, a.d * first + b.d * second}, first, second};
}

// ln of the softmax's denominator; -inf where nothing was visible.
ATTNLOOM_FN float log_sum_exp(State s) { return s.d == 0.0f ? -inf : s.m + attnloom::log(s.d); }

}  // namespace attnloom
