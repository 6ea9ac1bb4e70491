// fp8 numbers as 16-bit ones.
#pragma once
#include "mma.cuh"

namespace attnloom::cuda {

template <DType T>
ATTNLOOM_DEVICE uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t c;
  if constexpr (T == kBF16) asm("{.reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 %0, %1, %2, z;}" : "=r"(c) : "r"(a), "r"(b));
  else asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Two fp8 numbers, in the low bytes of the halves of `x`, as a pair of T; exact, but for bfloat16 an infinity of e5m2
// and a NaN come out finite: the exponent moves by a multiplication.
template <DType T, DType Narrow>
ATTNLOOM_DEVICE uint32_t widen(uint32_t x) {
  const uint32_t sign = (x & 0x00800080u) << 8;
  if constexpr (Narrow == kE5M2 && T == kF16) return x << 8;
  constexpr int mantissa = Narrow == kE4M3 ? 3 : 2;
  constexpr int shift = (T == kBF16 ? 7 : 10) - mantissa;
  // 2^(bias of T - bias of Narrow), as a pair of T.
  constexpr uint32_t power = T == kF16 ? 0x5c005c00u : Narrow == kE4M3 ? 0x7b807b80u : 0x77807780u;
  return multiply_pairs<T>(sign | (x & 0x007f007fu) << shift, power);
}

}  // namespace attnloom::cuda
