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

// The fp8 numbers in the high bytes of the halves of `x` as a pair of T: exact, but a NaN of e4m3, and beside bfloat16 one
// of e5m2 or an infinity, come out finite: the exponent moves by a multiplication.
template <DType T, DType Narrow>
ATTNLOOM_DEVICE uint32_t widen_high(uint32_t x) {
  if constexpr (Narrow == kE5M2 && T == kF16) return x & 0xff00ff00u;
  constexpr int shift = (T == kBF16 ? 8 : 5) - (Narrow == kE4M3 ? 4 : 5);  // how much wider exponents become
  // 2^(bias of T - bias of Narrow), as a pair of T.
  constexpr uint32_t power = T == kF16 ? 0x5c005c00u : Narrow == kE4M3 ? 0x7b807b80u : 0x77807780u;
  return multiply_pairs<T>((x & 0x80008000u) | (x >> shift & 0x7f007f00u >> shift), power);
}

// The four fp8 numbers of a word as pairs of T, in order.
template <DType T, DType Narrow>
ATTNLOOM_DEVICE void widen(uint32_t x, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
  if constexpr (Narrow == kE4M3 && T == kF16) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(low), "=r"(high)
        : "r"(x));
    return;
  }
#endif
  low = widen_high<T, Narrow>(__byte_perm(x, 0, 0x1404));
  high = widen_high<T, Narrow>(__byte_perm(x, 0, 0x3424));
}

// The same, the even ones and the odd ones apart.
template <DType T, DType Narrow>
ATTNLOOM_DEVICE void widen_apart(uint32_t x, uint32_t& even, uint32_t& odd) {
#if __CUDA_ARCH__ >= 890
  if constexpr (Narrow == kE4M3 && T == kF16) return widen<T, Narrow>(__byte_perm(x, 0, 0x3120), even, odd);
#endif
  even = widen_high<T, Narrow>(x << 8);
  odd = widen_high<T, Narrow>(x);
}

}  // namespace attnloom::cuda
