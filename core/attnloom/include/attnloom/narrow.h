// Half precision as tensor parameters store it: read as float, free of branches.
#pragma once
#include <cstdint>

#include "fn.h"

namespace attnloom {

namespace detail {

ATTNLOOM_FN float float_of_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
ATTNLOOM_FN uint32_t bits_of_float(float x) { return __builtin_bit_cast(uint32_t, x); }

}  // namespace detail

// IEEE binary16.
struct Half {
  uint16_t bits;

  ATTNLOOM_FN operator float() const {
    const float magnitude = detail::float_of_bits((bits & 0x7fffu) << 13) * 0x1p112f;
    const bool finite = (bits & 0x7c00u) != 0x7c00u;
    const uint32_t value = finite ? detail::bits_of_float(magnitude) : 0x7f800000u | ((bits & 0x3ffu) << 13);
    return detail::float_of_bits(value | ((bits & 0x8000u) << 16));
  }

  // x rounded to the nearest, ties to even.
  static ATTNLOOM_FN Half nearest(float x) {
    const uint32_t all = detail::bits_of_float(x), magnitude = all & 0x7fffffffu;
    // Adding 2^-1 to a multiple of the half's smallest step leaves the rounded multiple in the low bits.
    const uint32_t small = detail::bits_of_float(detail::float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    uint32_t half = magnitude < 0x38800000u ? small : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return {static_cast<uint16_t>(half | ((all >> 16) & 0x8000u))};
  }
};

// The upper half of a float.
struct BFloat16 {
  uint16_t bits;

  ATTNLOOM_FN operator float() const { return detail::float_of_bits(static_cast<uint32_t>(bits) << 16); }

  static ATTNLOOM_FN BFloat16 nearest(float x) {
    const uint32_t all = detail::bits_of_float(x);
    const uint32_t rounded = (all + 0x7fffu + ((all >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>(x != x ? 0x7fc0u : rounded)};
  }
};

}  // namespace attnloom
