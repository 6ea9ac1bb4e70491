// rope: pair i of a row turns by position * inv_freq[i] radians.
#pragma once
#include <attnloom/variant.h>

struct Rope {
  template <class Params>
  static constexpr int rotated_dims = Params::rotary_dim;

  template <class Params, class Row>
  ATTNLOOM_FN void query_transform(const Params& p, Row& row, const attnloom::Site& site) const {
    rotate(p, row, site.q_pos);
  }

  template <class Params, class Row>
  ATTNLOOM_FN void key_transform(const Params& p, Row& row, const attnloom::Site& site) const {
    rotate(p, row, site.kv_pos);
  }

 private:
  template <class Params, class Row>
  static ATTNLOOM_FN void rotate(const Params& p, Row& row, int pos) {
    constexpr auto pairing = Params::interleaved ? attnloom::Pair::adjacent : attnloom::Pair::half;
    row.template rotate<pairing, Params::rotary_dim>(pos + p.offset, [&p](int i) { return p.inv_freq(i); }, p.scale);
  }
};
