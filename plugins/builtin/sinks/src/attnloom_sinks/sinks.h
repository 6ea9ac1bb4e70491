// sinks: exp(sinks[head]) joins every row's denominator once, and brings no value.
#pragma once
#include <attnloom/variant.h>

struct Sinks {
  template <class Params>
  ATTNLOOM_FN attnloom::RowInit row_init(const Params& p, const attnloom::Site& site) const {
    return {p.sinks(site.qo_head), 1.0f};
  }
};
