// What functors lowered from Python call: torch's arithmetic on single elements. Integers wrap, division and remainder
// round towards minus infinity, NaN passes through minimum and maximum.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "math.h"
#include "tensor_ref.h"

namespace attnloom::mods {

// Integers

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
ATTNLOOM_FN T add(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <class T>
ATTNLOOM_FN T sub(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
}
template <class T>
  requires std::is_integral_v<T>
ATTNLOOM_FN T mul(T a, T b) {
  using Wide = std::conditional_t<(sizeof(T) < 4), uint32_t, Unsigned<T>>;  // uint16_t would be promoted to int
  return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
}
template <class T>
ATTNLOOM_FN T neg(T a) {
  return sub(T{0}, a);
}
template <class T>
  requires std::is_integral_v<T>
ATTNLOOM_FN T abs(T a) {
  return a < 0 ? neg(a) : a;
}
template <class T>
  requires std::is_integral_v<T>
ATTNLOOM_FN T minimum(T a, T b) {
  return b < a ? b : a;
}
template <class T>
  requires std::is_integral_v<T>
ATTNLOOM_FN T maximum(T a, T b) {
  return a < b ? b : a;
}
template <class T>
  requires std::is_integral_v<T>
ATTNLOOM_FN T sign(T a) {
  return static_cast<T>((a > 0) - (a < 0));
}

// a / b rounded down; b is a constant other than 0, so that the compiler finds a multiplication.
template <class T>
  requires std::is_integral_v<T>
ATTNLOOM_FN T floor_divide(T a, T b) {
  if (b == -1) return neg(a);
  return static_cast<T>(a / b - ((a % b != 0) & ((a < 0) != (b < 0))));
}
template <class T>
  requires std::is_integral_v<T>
ATTNLOOM_FN T remainder(T a, T b) {
  return sub(a, mul(floor_divide(a, b), b));
}

// The same for any b; 0 gives something, where torch raises. Doubles divide 32 bit integers exactly, in vectors.
template <class T>
  requires std::is_integral_v<T>
ATTNLOOM_FN T floor_divide_any(T a, T b) {
#if !defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) <= 4) {
    const double quotient = ::floor(static_cast<double>(a) / static_cast<double>(b == 0 ? T{1} : b));
    return static_cast<T>(static_cast<int64_t>(quotient));
  }
#endif
  return floor_divide(a, b == 0 ? T{1} : b);
}
template <class T>
  requires std::is_integral_v<T>
ATTNLOOM_FN T remainder_any(T a, T b) {
  return sub(a, mul(floor_divide_any(a, b), b));
}

// The same, rounded towards 0.
template <class T>
ATTNLOOM_FN T truncated_divide(T a, T b) {
  if (b == 0) return 0;
  return b == -1 ? neg(a) : static_cast<T>(a / b);
}
template <class T>
ATTNLOOM_FN T truncated_remainder(T a, T b) {
  return sub(a, mul(truncated_divide(a, b), b));
}

// Shifts by 0 to the width; beyond it everything is shifted out.
template <class T>
ATTNLOOM_FN T shift_left(T a, T b) {
  const bool inside = b >= 0 && b < static_cast<T>(8 * sizeof(T));
  return inside ? static_cast<T>(static_cast<Unsigned<T>>(a) << b) : T{0};
}
template <class T>
ATTNLOOM_FN T shift_right(T a, T b) {
  const bool inside = b >= 0 && b < static_cast<T>(8 * sizeof(T));
  return static_cast<T>(a >> (inside ? b : static_cast<T>(8 * sizeof(T) - 1)));
}

template <class T>
ATTNLOOM_FN T power(T base, T exponent) {
  if (exponent < 0) return base == 1 ? T{1} : base == -1 ? (exponent % 2 ? T(-1) : T{1}) : T{0};
  T result = 1;
  for (; exponent; exponent = static_cast<T>(exponent >> 1), base = mul(base, base))
    if (exponent & 1) result = mul(result, base);
  return result;
}

// An index as Python counts: -1 is the last.
ATTNLOOM_FN int64_t wrap(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

// A float towards 0 as an integer; what no T holds becomes its least value, as on x86.
template <class T, class F>
ATTNLOOM_FN T to_integer(F x) {
  using Wide = std::conditional_t<(sizeof(T) < 4), int32_t, T>;
  constexpr F bound = static_cast<F>(uint64_t{1} << (8 * sizeof(Wide) - 1));
  constexpr Wide least = std::numeric_limits<Wide>::min();
  const bool fits = x >= -bound && x < bound;
  return static_cast<T>(fits ? static_cast<Wide>(fits ? x : F{0}) : least);
}

// Floats

inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// A product that is not fused with a sum, so that it rounds as torch's does.
ATTNLOOM_FN float mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#elif defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && __GNUC__ >= 12
  return __builtin_assoc_barrier(a * b);
#else
  return a * b;
#endif
}
ATTNLOOM_FN double mul(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#elif defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && __GNUC__ >= 12
  return __builtin_assoc_barrier(a * b);
#else
  return a * b;
#endif
}

namespace detail {

// b as m 2^e with 1 <= |m| < 2, and what division by it needs: a loop over one divisor computes that once. With y the
// correctly rounded 1 / m and q near a / m, fma(fma(-m, q, a), y, q) is a / m correctly rounded (Markstein, IBM Journal of
// Research and Development 34, 1990).
struct Divisor {
  float m, y, power;  // power = 2^-e

  explicit ATTNLOOM_FN Divisor(float b) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, b);
    const uint32_t exponent = bits >> 23 & 255u, mantissa = bits & 0x7fffffu;
    const bool special = b == 0.0f || exponent == 255u;
    m = __builtin_bit_cast(float, (bits & 0x80000000u) | 0x3f800000u | (special ? 0u : mantissa));
    power = __builtin_bit_cast(float, exponent == 254u ? 0x400000u : (254u - exponent) << 23);
    if (exponent == 0u && !special) m = b * 0x1p127f, power = 0x1p127f;
    if (b == 0.0f) power = inf;
    if (exponent == 255u) power = mantissa == 0u ? 0.0f : nan;
    y = 1.0f / m;
    y = ::fmaf(y, ::fmaf(-m, y, 1.0f), y);
    if (mantissa == 0x7fffffu && exponent != 0u) y = ::copysignf(0x1.000002p-1f, m);  // where the refinement rounds down
  }

  // Correctly rounded; as if `a` were off by two of the least subnormals where |a| < 2^-100, and NaN for infinity where
  // b is subnormal and |a| > 2^104.
  ATTNLOOM_FN float divides(float a) const {
    const float q = a * y;
    const float rest = ::fmaf(-m, q, a);
    // No rest, and none that is a number, leaves zeros their sign and infinities whole.
    return (::fabsf(rest) > 0.0f ? ::fmaf(rest, y, q) : q) * power;
  }
};

}  // namespace detail

// Quotients and roots rounded as torch's, whatever the compiler's flags allow a device.
ATTNLOOM_FN float div(float a, float b) {
#if defined(__CUDA_ARCH__)
  return detail::Divisor(b).divides(a);
#else
  return a / b;
#endif
}
ATTNLOOM_FN double div(double a, double b) { return a / b; }
ATTNLOOM_FN float sqrt(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return ::sqrtf(x);
#endif
}
ATTNLOOM_FN double sqrt(double x) { return ::sqrt(x); }

// x as the nearest number that H holds.
template <class H>
ATTNLOOM_FN float rounded(float x) {
  return static_cast<float>(H::nearest(x));
}

ATTNLOOM_FN float abs(float x) { return ::fabsf(x); }
ATTNLOOM_FN double abs(double x) { return ::fabs(x); }

template <class T>
  requires std::is_floating_point_v<T>
ATTNLOOM_FN T minimum(T a, T b) {
  return a != a ? a : b != b ? b : b < a ? b : a;
}
template <class T>
  requires std::is_floating_point_v<T>
ATTNLOOM_FN T maximum(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? b : a;
}
template <class T>
  requires std::is_floating_point_v<T>
ATTNLOOM_FN T sign(T a) {
  return a > 0 ? T{1} : a < 0 ? T{-1} : T{0};
}
template <class T>
ATTNLOOM_FN bool isnan(T x) {
  return x != x;
}
template <class T>
ATTNLOOM_FN bool isinf(T x) {
  return abs(x) == static_cast<T>(inf);
}
template <class T>
ATTNLOOM_FN bool isfinite(T x) {
  return abs(x) < static_cast<T>(inf);
}

#define ATTNLOOM_MODS_LIBRARY(name)                         \
  ATTNLOOM_FN float name(float x) { return ::name##f(x); }  \
  ATTNLOOM_FN double name(double x) { return ::name(x); }
ATTNLOOM_MODS_LIBRARY(floor)
ATTNLOOM_MODS_LIBRARY(ceil)
ATTNLOOM_MODS_LIBRARY(trunc)
ATTNLOOM_MODS_LIBRARY(expm1)
ATTNLOOM_MODS_LIBRARY(log2)
ATTNLOOM_MODS_LIBRARY(log10)
ATTNLOOM_MODS_LIBRARY(log1p)
ATTNLOOM_MODS_LIBRARY(tan)
ATTNLOOM_MODS_LIBRARY(atan)
ATTNLOOM_MODS_LIBRARY(sinh)
ATTNLOOM_MODS_LIBRARY(cosh)
ATTNLOOM_MODS_LIBRARY(erf)
ATTNLOOM_MODS_LIBRARY(erfc)
#undef ATTNLOOM_MODS_LIBRARY

#define ATTNLOOM_MODS_LIBRARY(name)                                        \
  ATTNLOOM_FN float name(float x, float y) { return ::name##f(x, y); }     \
  ATTNLOOM_FN double name(double x, double y) { return ::name(x, y); }
ATTNLOOM_MODS_LIBRARY(pow)
ATTNLOOM_MODS_LIBRARY(atan2)
ATTNLOOM_MODS_LIBRARY(hypot)
ATTNLOOM_MODS_LIBRARY(copysign)
ATTNLOOM_MODS_LIBRARY(fmod)
#undef ATTNLOOM_MODS_LIBRARY

// Attnloom's own functions of floats, the library's of doubles.
#define ATTNLOOM_MODS_OWN(name)                                          \
  ATTNLOOM_FN float name(float x) { return attnloom::name(x); }          \
  ATTNLOOM_FN double name(double x) { return ::name(x); }
ATTNLOOM_MODS_OWN(exp)
ATTNLOOM_MODS_OWN(exp2)
ATTNLOOM_MODS_OWN(log)
ATTNLOOM_MODS_OWN(tanh)
ATTNLOOM_MODS_OWN(sin)
ATTNLOOM_MODS_OWN(cos)
#undef ATTNLOOM_MODS_OWN

ATTNLOOM_FN float round(float x) { return ::rintf(x); }  // halves to even
ATTNLOOM_FN double round(double x) { return ::rint(x); }

template <class T>
ATTNLOOM_FN T rsqrt(T x) {
  return div(T{1}, sqrt(x));
}
template <class T>
ATTNLOOM_FN T reciprocal(T x) {
  return div(T{1}, x);
}
template <class T>
ATTNLOOM_FN T sigmoid(T x) {
  return T{1} / (T{1} + exp(-x));
}
template <class T>
ATTNLOOM_FN T silu(T x) {
  return x / (T{1} + exp(-x));
}
template <class T>
ATTNLOOM_FN T gelu(T x) {
  return T(0.5) * x * (T{1} + erf(x * T(0.70710678118654752)));
}
template <class T>
ATTNLOOM_FN T gelu_tanh(T x) {
  return T(0.5) * x * (T{1} + tanh(T(0.79788456080286536) * (x + T(0.044715) * x * x * x)));
}

// Rounded down, with the sign of the divisor.
template <class T>
  requires std::is_floating_point_v<T>
ATTNLOOM_FN T remainder(T a, T b) {
  const T rest = fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
template <class T>
  requires std::is_floating_point_v<T>
ATTNLOOM_FN T floor_divide(T a, T b) {
  if (b == 0) return div(a, b);
  const T rest = fmod(a, b);
  T quotient = div(a - rest, b);
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= T{1};
  if (quotient == 0) return copysign(T{0}, div(a, b));
  const T whole = floor(quotient);
  return quotient - whole > T(0.5) ? whole + T{1} : whole;
}

// Where a rounding error may become a whole step: computed in double, rounded once.
namespace exact {

#define ATTNLOOM_MODS_EXACT(name)                                                                        \
  ATTNLOOM_FN float name(float x) { return static_cast<float>(mods::name(static_cast<double>(x))); }     \
  ATTNLOOM_FN double name(double x) { return mods::name(x); }
ATTNLOOM_MODS_EXACT(exp)
ATTNLOOM_MODS_EXACT(exp2)
ATTNLOOM_MODS_EXACT(expm1)
ATTNLOOM_MODS_EXACT(log)
ATTNLOOM_MODS_EXACT(log2)
ATTNLOOM_MODS_EXACT(log10)
ATTNLOOM_MODS_EXACT(log1p)
ATTNLOOM_MODS_EXACT(tanh)
ATTNLOOM_MODS_EXACT(sigmoid)
ATTNLOOM_MODS_EXACT(sqrt)
ATTNLOOM_MODS_EXACT(rsqrt)
ATTNLOOM_MODS_EXACT(sin)
ATTNLOOM_MODS_EXACT(cos)
ATTNLOOM_MODS_EXACT(tan)
ATTNLOOM_MODS_EXACT(atan)
ATTNLOOM_MODS_EXACT(sinh)
ATTNLOOM_MODS_EXACT(cosh)
ATTNLOOM_MODS_EXACT(erf)
ATTNLOOM_MODS_EXACT(erfc)
ATTNLOOM_MODS_EXACT(reciprocal)
ATTNLOOM_MODS_EXACT(silu)
ATTNLOOM_MODS_EXACT(gelu)
ATTNLOOM_MODS_EXACT(gelu_tanh)
#undef ATTNLOOM_MODS_EXACT

#define ATTNLOOM_MODS_EXACT(name)                                                                \
  ATTNLOOM_FN float name(float x, float y) {                                                     \
    return static_cast<float>(mods::name(static_cast<double>(x), static_cast<double>(y)));       \
  }                                                                                              \
  ATTNLOOM_FN double name(double x, double y) { return mods::name(x, y); }
ATTNLOOM_MODS_EXACT(pow)
ATTNLOOM_MODS_EXACT(atan2)
ATTNLOOM_MODS_EXACT(hypot)
ATTNLOOM_MODS_EXACT(copysign)
#undef ATTNLOOM_MODS_EXACT

}  // namespace exact

// Under fast_math: the special-function units of a device; on the host as above.
namespace fast {

#if defined(__CUDA_ARCH__)
ATTNLOOM_FN float exp(float x) { return __expf(x); }
ATTNLOOM_FN float exp2(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ATTNLOOM_FN float log(float x) { return __logf(x); }
ATTNLOOM_FN float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ATTNLOOM_FN float sigmoid(float x) { return 0.5f + 0.5f * tanh(0.5f * x); }
#else
ATTNLOOM_FN float exp(float x) { return mods::exp(x); }
ATTNLOOM_FN float exp2(float x) { return mods::exp2(x); }
ATTNLOOM_FN float log(float x) { return mods::log(x); }
ATTNLOOM_FN float tanh(float x) { return mods::tanh(x); }
ATTNLOOM_FN float sigmoid(float x) { return mods::sigmoid(x); }
#endif
ATTNLOOM_FN double exp(double x) { return mods::exp(x); }
ATTNLOOM_FN double exp2(double x) { return mods::exp2(x); }
ATTNLOOM_FN double log(double x) { return mods::log(x); }
ATTNLOOM_FN double tanh(double x) { return mods::tanh(x); }
ATTNLOOM_FN double sigmoid(double x) { return mods::sigmoid(x); }

}  // namespace fast
}  // namespace attnloom::mods
