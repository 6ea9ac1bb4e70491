// Vectors of 32-bit lanes, as wide as the target has them, in GCC's and Clang's vector extensions.
#pragma once
#include <cstdint>

#include "../fn.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#define ATTNLOOM_UNROLL _Pragma("GCC unroll 16")

namespace attnloom::host {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Vectors that a register tile is wide: 4 x 4 accumulators fit 32 registers, 4 x 2 fit 16.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileVectors = 4;
#else
constexpr int kTileVectors = 2;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t UVec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IVec __attribute__((vector_size(kLanes * 4)));
typedef Vec VecAt __attribute__((aligned(4), may_alias));
typedef UVec UVecAt __attribute__((aligned(1), may_alias));

ATTNLOOM_FN Vec load(const float* at) { return *reinterpret_cast<const VecAt*>(at); }
ATTNLOOM_FN UVec load(const uint32_t* at) { return *reinterpret_cast<const UVecAt*>(at); }
ATTNLOOM_FN void store(float* at, Vec x) { *reinterpret_cast<VecAt*>(at) = x; }
ATTNLOOM_FN void store(uint32_t* at, UVec x) { *reinterpret_cast<UVecAt*>(at) = x; }

ATTNLOOM_FN Vec splat(float x) { return x - Vec{}; }  // not x + 0, which is an addition where x may be -0
ATTNLOOM_FN UVec splat(uint32_t x) { return x - UVec{}; }

template <class To, class From>
ATTNLOOM_FN To bits_as(From x) {
  return __builtin_bit_cast(To, x);
}

ATTNLOOM_FN Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// e^x for x <= 0, 1 ulp; 0 where the result would be subnormal, NaN for NaN.
ATTNLOOM_FN Vec exp_nonpositive(Vec x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Vec rounded = x * 1.44269504f + kRound;
  const Vec n = rounded - kRound;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec q = r * 1.9875691500e-4f + 1.3981999507e-3f;
  q = q * r + 8.3334519073e-3f;
  q = q * r + 4.1665795894e-2f;
  q = q * r + 1.6666665459e-1f;
  q = q * r + 5.0000001201e-1f;
  q = q * (r * r) + (r + 1.0f);
  const Vec power = bits_as<Vec>(bits_as<UVec>(q) + (bits_as<UVec>(rounded) << 23));
  return x < -87.0f ? Vec{} : power;
}

// Lanes of two vectors in turn: a0 b0 a1 b1 ..., the low and the high half of that.
#if defined(__clang__)
#define ATTNLOOM_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ATTNLOOM_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, UVec{__VA_ARGS__})
#endif
ATTNLOOM_FN UVec interleave_low(UVec a, UVec b) {
#if defined(__AVX512F__)
  return ATTNLOOM_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif defined(__AVX__)
  return ATTNLOOM_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  return ATTNLOOM_SHUFFLE(a, b, 0, 4, 1, 5);
#endif
}
ATTNLOOM_FN UVec interleave_high(UVec a, UVec b) {
#if defined(__AVX512F__)
  return ATTNLOOM_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX__)
  return ATTNLOOM_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  return ATTNLOOM_SHUFFLE(a, b, 2, 6, 3, 7);
#endif
}

// a[i] + a[i + kLanes / 2] in the even lanes, the same of b in the odd ones.
ATTNLOOM_FN Vec add_halves(Vec a, Vec b) {
  const UVec x = bits_as<UVec>(a), y = bits_as<UVec>(b);
  return bits_as<Vec>(interleave_low(x, y)) + bits_as<Vec>(interleave_high(x, y));
}

// Of the lanes of a vector, in a fixed order: each round joins the halves.
ATTNLOOM_FN float lanes_max(Vec x) {
  ATTNLOOM_UNROLL
  for (int width = kLanes; width > 1; width /= 2) {
    const UVec bits = bits_as<UVec>(x);
    x = larger(bits_as<Vec>(interleave_low(bits, bits)), bits_as<Vec>(interleave_high(bits, bits)));
  }
  return x[0];
}
ATTNLOOM_FN float lanes_sum(Vec x) {
  ATTNLOOM_UNROLL
  for (int width = kLanes; width > 1; width /= 2) x = add_halves(x, x);
  return x[0];
}

// Transposes a square of kLanes x kLanes in place: log2(kLanes) perfect shuffles of the rows.
ATTNLOOM_FN void transpose(UVec (&x)[kLanes]) {
  ATTNLOOM_UNROLL
  for (int round = 1; round < kLanes; round *= 2) {
    UVec y[kLanes];
    ATTNLOOM_UNROLL
    for (int i = 0; i < kLanes / 2; i++) {
      y[2 * i] = interleave_low(x[i], x[i + kLanes / 2]);
      y[2 * i + 1] = interleave_high(x[i], x[i + kLanes / 2]);
    }
    ATTNLOOM_UNROLL
    for (int i = 0; i < kLanes; i++) x[i] = y[i];
  }
}

constexpr int round_up(int x, int to) { return (x + to - 1) / to * to; }

}  // namespace attnloom::host
