// Float functions for functors: on the host free of branches and calls, so that a loop over keys vectorises without
// -ffast-math; on the device the CUDA library's accurate forms. Infinities and NaN behave as in IEEE; errors are in
// units of the last place (ulp) of the result.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "fn.h"

namespace attnloom {

inline constexpr float inf = std::numeric_limits<float>::infinity();
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();

ATTNLOOM_FN float abs(float x) { return ::fabsf(x); }

// The smaller and the larger; the second where either is NaN.
ATTNLOOM_FN float min(float a, float b) { return a < b ? a : b; }
ATTNLOOM_FN float max(float a, float b) { return a > b ? a : b; }
ATTNLOOM_FN int min(int a, int b) { return a < b ? a : b; }
ATTNLOOM_FN int max(int a, int b) { return a > b ? a : b; }

ATTNLOOM_FN float sqrt(float x) { return ::sqrtf(x); }
ATTNLOOM_FN float pow(float x, float y) { return ::powf(x, y); }  // a library call: not for a loop over keys

namespace detail {

constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits

}  // namespace detail

#if defined(__CUDA_ARCH__)

namespace detail {

// The fast unit's functions: 2 ulp of the result, but for the sine and cosine, which are within 5e-7 for |x| <= pi.
ATTNLOOM_FN float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ATTNLOOM_FN float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / (1 + 2^x).
ATTNLOOM_FN float logistic2(float x) { return fast_reciprocal(1.0f + fast_exp2(x)); }
ATTNLOOM_FN void fast_sincos(float x, float& sine, float& cosine) {
  asm("sin.approx.f32 %0, %1;" : "=f"(sine) : "f"(x));
  asm("cos.approx.f32 %0, %1;" : "=f"(cosine) : "f"(x));
}

constexpr float kLargeAngle = 16777216.0f;  // 2^24

// Sine and cosine of a + b, |a| <= kLargeAngle, b being at most an ulp of it: turns are taken off until the fast unit can
// do it.
ATTNLOOM_FN void sincos_sum(float a, float b, float& sine, float& cosine) {
  const float turns = ::fmaf(a, 0.15915494f, kRound) - kRound;
  const float r = ::fmaf(turns, -6.28318548f, a);
  fast_sincos(::fmaf(turns, 1.74845553e-7f, b) + r, sine, cosine);
}

}  // namespace detail

ATTNLOOM_FN float rsqrt(float x) { return ::rsqrtf(x); }
ATTNLOOM_FN float exp(float x) { return ::expf(x); }
ATTNLOOM_FN float exp2(float x) { return detail::fast_exp2(x); }
ATTNLOOM_FN float log(float x) { return ::logf(x); }

// bound * tanh(x / bound), bound > 0, absolute error 4e-7 * bound.
ATTNLOOM_FN float soft_clamp(float x, float bound) {
  return ::copysignf(::fmaf(-2.0f * bound, detail::logistic2(::fabsf(x) * (2.88539008f / bound)), bound), x);
}

// Hyperbolic tangent, absolute error 3e-7.
ATTNLOOM_FN float tanh(float x) { return soft_clamp(x, 1.0f); }

// Sine and cosine of an angle in radians, absolute error 1e-6.
ATTNLOOM_FN void sincos(float x, float& sine, float& cosine) {
  if (::fabsf(x) <= detail::kLargeAngle) {
    detail::sincos_sum(x, 0.0f, sine, cosine);
  } else {
    const double turns = ::rint(x * 0.15915494309189535);
    detail::fast_sincos(static_cast<float>(x - turns * 6.283185307179586), sine, cosine);
  }
}

// Sine and cosine of the exact product a * b, absolute error 1e-6 up to 2^24; without a branch, for loops over a row.
ATTNLOOM_FN void sincos(float a, float b, float& sine, float& cosine) {
  const float product = a * b;
  detail::sincos_sum(product, ::fmaf(a, b, -product), sine, cosine);
}

#else

namespace detail {

ATTNLOOM_FN float from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }
ATTNLOOM_FN uint32_t to_bits(float x) { return __builtin_bit_cast(uint32_t, x); }

// e^r - 1 for |r| <= ln(2) / 2.
ATTNLOOM_FN float expm1_reduced(float r) {
  float q = 1.3950488203e-3f;
  q = q * r + 8.3688876673e-3f;
  q = q * r + 4.1666205846e-2f;
  q = q * r + 1.6666518854e-1f;
  q = q * r + 5.0000000952e-1f;
  return r + r * r * q;
}

// x * 2^n for |n| <= 252 without leaving the range on the way.
ATTNLOOM_FN float scale_by_power(float x, int n) {
  const int half = n >> 1;
  const float first = from_bits(static_cast<uint32_t>(half + 127) << 23);
  const float second = from_bits(static_cast<uint32_t>(n - half + 127) << 23);
  return x * first * second;
}

// The integer that `rounded` (a number plus kRound) holds; something harmless where it was NaN.
ATTNLOOM_FN int rounded_integer(float rounded) {
  return static_cast<int>(to_bits(rounded) & 0x7fffffu) - 0x400000;
}

ATTNLOOM_FN float clamp(float x, float lo, float hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}

// e^x split as 2^n * (1 + p).
struct ExpParts {
  int n;
  float p;
};
ATTNLOOM_FN ExpParts exp_parts(float x) {
  const float rounded = x * 1.44269504f + kRound;
  const float n = rounded - kRound;
  const float r = (x - n * 0.693145751953125f) - n * 1.42860682e-06f;
  return {rounded_integer(rounded), expm1_reduced(r)};
}

// Sine and cosine of an angle in radians, |x| <= 2^31.
ATTNLOOM_FN void sincos_double(double x, float& sine, float& cosine) {
  constexpr double round = 6755399441055744.0;  // 1.5 * 2^52
  const double rounded = x * 0.6366197723675814 + round;
  const double n = rounded - round;
  const double high = x - n * 1.5707963267341256;
  const float r = static_cast<float>(high - n * 6.077100506506192e-11);
  const uint32_t quadrant = static_cast<uint32_t>(__builtin_bit_cast(uint64_t, rounded));
  const float u = r * r;
  const float s = r + r * u * (-1.6666654854e-1f + u * (8.3321722827e-3f + u * -1.9516479916e-4f));
  const float c = 1.0f - 0.5f * u + u * u * (4.1666646715e-2f + u * (-1.3887359789e-3f + u * 2.4437532754e-5f));
  const bool swapped = (quadrant & 1u) != 0;
  const float s_swapped = swapped ? c : s;
  const float c_swapped = swapped ? s : c;
  sine = from_bits(to_bits(s_swapped) ^ ((quadrant & 2u) << 30));
  cosine = from_bits(to_bits(c_swapped) ^ (((quadrant + 1u) & 2u) << 30));
}

}  // namespace detail

ATTNLOOM_FN float rsqrt(float x) { return 1.0f / ::sqrtf(x); }

// e^x, 1.5 ulp; gradual underflow, overflow to infinity.
ATTNLOOM_FN float exp(float x) {
  const auto [n, p] = detail::exp_parts(detail::clamp(x, -105.0f, 89.0f));
  return detail::scale_by_power(1.0f + p, n);
}

// 2^x, 1.5 ulp.
ATTNLOOM_FN float exp2(float x) {
  x = detail::clamp(x, -151.0f, 129.0f);
  const float rounded = x + detail::kRound;
  const float r = (x - (rounded - detail::kRound)) * 0.693147181f;
  return detail::scale_by_power(1.0f + detail::expm1_reduced(r), detail::rounded_integer(rounded));
}

namespace detail {

// 1 / (1 + 2^x).
ATTNLOOM_FN float logistic2(float x) { return 1.0f / (1.0f + attnloom::exp2(x)); }

}  // namespace detail

// Natural logarithm, 2 ulp; -inf at 0, NaN below.
ATTNLOOM_FN float log(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = subnormal ? x * 16777216.0f : x;
  const uint32_t bits = detail::to_bits(scaled);
  const uint32_t shifted = bits - 0x3f3504f3u;  // sqrt(1/2), so that the mantissa lies in [sqrt(1/2), sqrt(2))
  const int exponent = static_cast<int>(shifted) >> 23;
  const float mantissa = detail::from_bits((shifted & 0x7fffffu) + 0x3f3504f3u);
  const float n = static_cast<float>(exponent) - (subnormal ? 24.0f : 0.0f);
  const float t = mantissa - 1.0f;
  const float s = t / (2.0f + t);
  const float u = s * s;
  const float tail = u * (0.666666667f + u * (0.4f + u * (0.285714286f + u * 0.222222222f)));
  const float finite = n * 0.693145751953125f + (t - (s * (t - tail) - n * 1.42860682e-06f));
  float result = x > 0.0f ? finite : (x == 0.0f ? -inf : std::numeric_limits<float>::quiet_NaN());
  return x == inf ? x : result;
}

// Hyperbolic tangent, 3 ulp.
ATTNLOOM_FN float tanh(float x) {
  const float a = ::fabsf(x);
  const auto [n, p] = detail::exp_parts(2.0f * (a > 10.0f ? 10.0f : a));
  const float power = detail::from_bits(static_cast<uint32_t>(n + 127) << 23);
  const float e = power * p + (power - 1.0f);  // e^2a - 1
  return ::copysignf(e / (e + 2.0f), x);
}

// bound * tanh(x / bound), bound > 0.
ATTNLOOM_FN float soft_clamp(float x, float bound) { return bound * attnloom::tanh(x / bound); }

// Sine and cosine of an angle in radians, absolute error below 1e-7 for |x| <= 2^31.
ATTNLOOM_FN void sincos(float x, float& sine, float& cosine) { detail::sincos_double(x, sine, cosine); }

// Sine and cosine of the exact product a * b: a position times a frequency is no float at long contexts.
ATTNLOOM_FN void sincos(float a, float b, float& sine, float& cosine) {
  detail::sincos_double(static_cast<double>(a) * static_cast<double>(b), sine, cosine);
}

#endif

ATTNLOOM_FN float sin(float x) {
  float sine, cosine;
  sincos(x, sine, cosine);
  return sine;
}
ATTNLOOM_FN float cos(float x) {
  float sine, cosine;
  sincos(x, sine, cosine);
  return cosine;
}

// 1 / (1 + e^-x), 3 ulp.
ATTNLOOM_FN float sigmoid(float x) {
#if defined(__CUDA_ARCH__)
  return detail::logistic2(x * -1.44269504f);
#else
  return 1.0f / (1.0f + attnloom::exp(-x));
#endif
}

}  // namespace attnloom
