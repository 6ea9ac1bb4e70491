// Products of a few rows straight from where K lies: packing it would cost more than it saves.
#pragma once
#include "product.h"

namespace attnloom::host {

// Rows multiplied at once without packing K: adding up the lanes of their products takes fewer shuffles than
// transposing K does.
constexpr int kFewRows = 4;

// Rows up to which several such blocks are faster than packing, where memory holds K and V as they are multiplied.
// Pairs of bfloat16 are joined once where V is packed, and by every block where it is not.
template <class A>
inline constexpr int kRowsInPlace = A::step == 1 ? 12 : kFewRows;

// Lane i of sum[r]: the product of key first + i * stride with row r of Q, rows of `width` lanes; key(i) says where key
// i is. The lanes of partial sums are added in pairs of keys, the even and the odd ones, until each key has one lane.
template <class A, int width, int N, int count = kLanes, int first = 0, int stride = 1, class Key>
ATTNLOOM_FN void dot_products(const Key& key, const typename A::Lane* q, Vec (&sum)[N]) {
  if constexpr (count == 1) {
    const typename A::Lane* row = key(first);
    ATTNLOOM_UNROLL
    for (int r = 0; r < N; r++) sum[r] = Vec{};
    for (int d = 0; d < width; d += kLanes) {
      const typename A::Lanes right = load(row + d);
      ATTNLOOM_UNROLL
      for (int r = 0; r < N; r++) sum[r] = A::multiply_add(sum[r], load(q + r * width + d), right);
    }
  } else {
    Vec odd[N];
    dot_products<A, width, N, count / 2, first, 2 * stride>(key, q, sum);
    dot_products<A, width, N, count / 2, first + stride, 2 * stride>(key, q, odd);
    ATTNLOOM_UNROLL
    for (int r = 0; r < N; r++) sum[r] = add_halves(sum[r], odd[r]);
  }
}

}  // namespace attnloom::host
