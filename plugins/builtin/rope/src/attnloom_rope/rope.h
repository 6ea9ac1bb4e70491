// rope: pair i of a row turns by position * inv_freq[i] radians.
#pragma once
#include <attnloom/variant.h>

struct Rope {
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
    const float position = static_cast<float>(pos + p.offset);
    row.template pairs<pairing, Params::rotary_dim>([&](int i, float& a, float& b) {
      float sine, cosine;
      attnloom::sincos(position, p.inv_freq(i), sine, cosine);
      const float first = a;
      a = first * cosine - b * sine;
      b = b * cosine + first * sine;
    });
    const float scale = p.scale;
    if (scale == 1.0f) return;
    row.template pairs<pairing, Params::rotary_dim>([scale](int, float& a, float& b) {
      a *= scale;
      b *= scale;
    });
  }
};
