// Warp verbs of the tensor cores: 16 x 8 x 16 products of bfloat16 or float16, and the loads that lay their operands out.
// In a fragment, lane 4 g + c holds elements 2 c, 2 c + 1 (and 2 c + 8, 2 c + 9) of rows g and g + 8.
#pragma once
#include <type_traits>

#include "../args.h"

namespace attnloom::cuda {

#define ATTNLOOM_DEVICE __device__ __forceinline__

// `x`, computed where it stands: what follows from it is not kept in registers across a loop.
template <class T>
ATTNLOOM_DEVICE T here(T x) {
  if constexpr (std::is_same_v<T, float>) asm volatile("" : "+f"(x));
  else if constexpr (sizeof(T) == 8) asm volatile("" : "+l"(x));
  else asm volatile("" : "+r"(x));
  return x;
}

template <class T>
ATTNLOOM_DEVICE T* here(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

// `p`, which points into global memory: pointers that were read from shared memory do not tell.
template <class T>
ATTNLOOM_DEVICE T* in_global(T* p) {
  __builtin_assume(__isGlobal(p));
  return p;
}

ATTNLOOM_DEVICE int lane_id() { return here(static_cast<int>(threadIdx.x)) & 31; }
ATTNLOOM_DEVICE int warp_id() { return here(static_cast<int>(threadIdx.x)) >> 5; }
ATTNLOOM_DEVICE bool is_first_thread() { return here(static_cast<int>(threadIdx.x)) == 0; }

// Two floats as a pair of 16-bit numbers, the first in the low half.
template <DType T>
ATTNLOOM_DEVICE uint32_t pack(float low, float high) {
  static_assert(T == kBF16 || T == kF16, "tensor cores take bfloat16 and float16");
  uint32_t pair;
  if constexpr (T == kBF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <DType T>
ATTNLOOM_DEVICE void unpack(uint32_t pair, float& low, float& high) {
  if constexpr (T == kBF16) {
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xffff0000u);
  } else {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(pair));
  }
}

// c += a b, of a 16 x 16 and a 16 x 8 matrix.
template <DType T>
ATTNLOOM_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (T == kBF16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices whose rows lie at the addresses of lanes 0-7, 8-15, 16-23 and 24-31.
ATTNLOOM_DEVICE void load_matrices(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}
ATTNLOOM_DEVICE void load_matrices_transposed(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}

// Over the four lanes that hold a row of a fragment.
ATTNLOOM_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
ATTNLOOM_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace attnloom::cuda
