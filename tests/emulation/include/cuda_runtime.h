// What kernels ask of CUDA, on this CPU: see ../conftest.py.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#define CUDART_VERSION 13000
#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes)
#define __builtin_assume(condition) static_cast<void>(0)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x = 1) : x(x) {}
};

using std::max;
using std::min;

#include "emulation/launch.h"

// ------------------------------------------------------------------------------------------------------- intrinsics

inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __activemask() { return ~0u; }
inline int __vimax3_s32_relu(int a, int b, int c) { return std::max({a, b, c, 0}); }
inline int __vimax3_s32(int a, int b, int c) { return std::max({a, b, c}); }
inline float __fdividef(float a, float b) { return a / b; }
#define __expf(x) std::exp(x)  // the C library declares functions of these names
#define __logf(x) std::log(x)
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return result;
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
  return shift >= 32 ? low : shift == 0 ? high : high << shift | low >> (32 - shift);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}

template <class T>
T __ldcg(const T* at) {
  emulation::check_global(at, sizeof(T));
  return *at;
}
inline uint32_t __cvta_generic_to_shared(const void* p) { return emulation::shared_address(p); }

inline void __syncthreads() { emulation::meet_block(); }
inline void __syncwarp() {
  if (!emulation::ignores("__syncwarp")) emulation::meet_warp(0, "__syncwarp");
}

template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  return emulation::meet_warp(x, "__shfl_sync")[lane & 31];
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return emulation::meet_warp(x, "__shfl_xor_sync")[threadIdx.x % 32 ^ mask];
}
inline int __any_sync(unsigned, bool x) {
  const bool* all = emulation::meet_warp(x, "__any_sync");
  return std::any_of(all, all + 32, [](bool one) { return one; });
}
inline int __all_sync(unsigned, bool x) {
  const bool* all = emulation::meet_warp(x, "__all_sync");
  return std::all_of(all, all + 32, [](bool one) { return one; });
}
inline int __reduce_min_sync(unsigned, int x) {
  const int* all = emulation::meet_warp(x, "__reduce_min_sync");
  return *std::min_element(all, all + 32);
}
inline int __reduce_max_sync(unsigned, int x) {
  const int* all = emulation::meet_warp(x, "__reduce_max_sync");
  return *std::max_element(all, all + 32);
}
