// qk_norm: x * rsqrt(mean(x^2) + eps) * weight, over each row of q and of k.
#pragma once
#include <attnloom/variant.h>

struct QkNorm {
  template <class Params, class Row>
  ATTNLOOM_FN void query_transform(const Params& p, Row& row, const attnloom::Site&) const {
    normalise(row, p.q_weight, p.eps);
  }

  template <class Params, class Row>
  ATTNLOOM_FN void key_transform(const Params& p, Row& row, const attnloom::Site&) const {
    normalise(row, p.k_weight, p.eps);
  }

 private:
  template <class Row, class Weight>
  static ATTNLOOM_FN void normalise(Row& row, const Weight& weight, float eps) {
    const float squares = row.sum([](int, float x) { return x * x; });
    const float factor = attnloom::rsqrt(squares / Row::dims + eps);
    row.each([&](int d, float& x) { x *= factor * weight(d); });
  }
};
