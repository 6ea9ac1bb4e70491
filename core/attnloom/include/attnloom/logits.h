// Several logits of one row: what kernels give functors that do not ask which keys they are of.
#pragma once
#include "math.h"

namespace attnloom {

// `factor` times each of `at`.
template <int N>
struct Logits {
  static_assert(N % 2 == 0);

  float at[N];
  float factor;
};

namespace detail {

// The largest of numbers that are not negative, or a NaN.
ATTNLOOM_FN float largest_of(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
#else
  return max(max(a, b), c);
#endif
}

// Whether it holds for every lane that asks.
ATTNLOOM_FN bool on_all_lanes(bool holds) {
#if defined(__CUDA_ARCH__)
  return __all_sync(__activemask(), holds);
#else
  return holds;
#endif
}

}  // namespace detail

// bound * tanh(x / bound) of each, bound > 0, absolute error 5e-7 * bound: by a polynomial where a warp's are within bound / 2.
template <int N>
ATTNLOOM_FN Logits<N> soft_clamp(const Logits<N>& x, float bound) {
  const float ratio = x.factor / bound, scale = ratio * ratio;
  float square[N], largest = 0.0f;
  ATTNLOOM_LOOP
  for (int i = 0; i < N; i++) square[i] = x.at[i] * x.at[i];
  ATTNLOOM_LOOP
  for (int i = 0; i < N; i += 2) largest = detail::largest_of(square[i], square[i + 1], largest);
  Logits<N> clamped{.factor = 1.0f};
  // Powers of a tiny scale are lost, which does no harm where what they multiply is small too.
  if (detail::on_all_lanes(largest * scale <= (scale > 1e-12f ? 0.25f : 1e-6f))) {
    const float c1 = x.factor * scale * -0.333264619f;
    const float c2 = x.factor * scale * scale * 0.131858617f;
    const float c3 = x.factor * scale * scale * scale * -0.0442292877f;
    ATTNLOOM_LOOP
    for (int i = 0; i < N; i++)
      clamped.at[i] = x.at[i] * (((c3 * square[i] + c2) * square[i] + c1) * square[i] + x.factor);
  } else {
    const float steepness = 2.88539008f * ratio;
    ATTNLOOM_LOOP
    for (int i = 0; i < N; i++) clamped.at[i] = bound - 2.0f * bound * detail::logistic2(steepness * x.at[i]);
  }
  return clamped;
}

}  // namespace attnloom
