// Number formats: how an element of memory becomes a float32 and back.
#pragma once
#include "../args.h"
#include "simd.h"

namespace attnloom::host {

template <DType T>
struct Element {
  using Stored = uint16_t;
};
template <>
struct Element<kF32> {
  using Stored = float;
};
template <>
struct Element<kE4M3> {
  using Stored = uint8_t;
};
template <>
struct Element<kE5M2> {
  using Stored = uint8_t;
};
template <DType T>
using Stored = typename Element<T>::Stored;

// The float of a number of format T in the low bits of `x`; F and U are float and uint32_t, or vectors of them.
template <DType T, class F, class U>
ATTNLOOM_FN F decode(U x) {
  if constexpr (T == kBF16) {
    return bits_as<F>(x << 16);
  } else if constexpr (T == kE4M3) {
    const U magnitude = (x & 0x7fu) << 20;
    const U bits = bits_as<U>(bits_as<F>(magnitude) * 0x1p120f) | ((x & 0x80u) << 24);
    const U nan = bits | 0x7fc00000u;
    return bits_as<F>(magnitude == 0x07f00000u ? nan : bits);
  } else {
    const U half = T == kE5M2 ? x << 8 : x;
    const U magnitude = (half & 0x7fffu) << 13;
    const U bits = bits_as<U>(bits_as<F>(magnitude) * 0x1p112f) | ((half & 0x8000u) << 16);
    const U special = bits | 0x7f800000u;
    return bits_as<F>(magnitude >= 0x0f800000u ? special : bits);
  }
}

template <DType T>
ATTNLOOM_FN float to_float(Stored<T> x) {
  if constexpr (T == kF32) return x;
  else return decode<T, float>(static_cast<uint32_t>(x));
}

// kLanes elements.
template <DType T>
ATTNLOOM_FN Vec load_floats(const Stored<T>* at) {
  if constexpr (T == kF32) {
    return load(at);
  } else {
    typedef Stored<T> Narrow __attribute__((vector_size(kLanes * sizeof(Stored<T>)), aligned(1), may_alias));
    return decode<T, Vec>(__builtin_convertvector(*reinterpret_cast<const Narrow*>(at), UVec));
  }
}

// The bits of the bfloat16 nearest to `x`, ties to even; U and F as in `decode`.
template <class U, class F>
ATTNLOOM_FN U bf16_bits(F x) {
  const U bits = bits_as<U>(x);
  const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U nan = (bits >> 16) | 0x40u;
  return (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
}

ATTNLOOM_FN uint16_t f16_bits(float x) {
  const uint32_t bits = bits_as<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t small = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t half = magnitude < 0x38800000u ? small : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
}

template <DType T>
ATTNLOOM_FN Stored<T> from_float(float x) {
  static_assert(T == kF32 || T == kF16 || T == kBF16, "outputs are float32, float16 or bfloat16");
  if constexpr (T == kF32) return x;
  else if constexpr (T == kF16) return f16_bits(x);
  else return static_cast<uint16_t>(bf16_bits<uint32_t>(x));
}

// N elements as floats; the rest of `row`, up to a whole number of vectors, is zero.
template <DType T, int N>
ATTNLOOM_FN void load_row(const Stored<T>* from, float* row) {
  constexpr int whole = N / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) store(row + i, load_floats<T>(from + i));
  if constexpr (whole < N) {
    for (int i = whole; i < N; i++) row[i] = to_float<T>(from[i]);
    for (int i = N; i < round_up(N, kLanes); i++) row[i] = 0.0f;
  }
}

template <DType T, int N>
ATTNLOOM_FN void store_row(const float* row, Stored<T>* to) {
  ATTNLOOM_LOOP
  for (int i = 0; i < N; i++) to[i] = from_float<T>(row[i]);
}

}  // namespace attnloom::host
