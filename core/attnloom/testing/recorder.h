// recorder: writes down every site that a functor is given, and changes nothing.
#pragma once
#include <attnloom/variant.h>

namespace attnloom::testing {

struct Recorder {
  static int32_t* log(const int32_t* data) { return const_cast<int32_t*>(data); }

  template <class Params>
  ATTNLOOM_FN float logits_transform(const Params& p, float logit, const Site& s) const {
    if (s.q_index < 0 || s.q_index >= s.qo_len || s.kv_index < 0 || s.kv_index >= s.kv_len) {
      log(p.strays.data)[0] = 1;
      return logit;
    }
    int32_t* seen = log(p.pairs.data) + s.request * p.pairs.stride[0] + s.qo_head * p.pairs.stride[1] +
                    s.q_index * p.pairs.stride[2] + s.kv_index * p.pairs.stride[3];
    seen[0] += 1;
    seen[1] = s.q_pos;
    seen[2] = s.kv_pos;
    return logit;
  }

  template <class Params, class Row>
  ATTNLOOM_FN void output_transform(const Params& p, Row&, const Site& s) const {
    log(p.outputs.data)[s.request * p.outputs.stride[0] + s.qo_head * p.outputs.stride[1] + s.q_index] += 1;
  }
};

}  // namespace attnloom::testing
