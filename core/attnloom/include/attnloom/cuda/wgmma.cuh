// Warpgroup verbs of Hopper's tensor cores: asynchronous products of 64 rows by four warps, operands in shared memory as
// `Blocked` lays them out. Warp w holds rows 16 w to 16 w + 15 of a result, in the fragments of mma.cuh.
#pragma once
#include <type_traits>

#include "mma.cuh"

namespace attnloom::cuda {

constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 / 16} << 32;  // 1,024 bytes of a block

// An operand whose blocks of 64 columns lie `block_bytes` apart.
ATTNLOOM_DEVICE uint64_t operand(uint32_t address, int block_bytes) {
  return kSwizzle128 | kEightRows | static_cast<uint64_t>(block_bytes / 16) << 16 | (address / 16 & 0x3fff);
}
// Its lower half.
ATTNLOOM_DEVICE uint32_t operand_at(uint32_t address, int block_bytes) {
  return static_cast<uint32_t>(operand(address, block_bytes));
}

// An operand of which the compiler knows that it is the same on all lanes, and can keep it in uniform registers.
struct Operand {
  uint32_t low;

  ATTNLOOM_DEVICE explicit Operand(uint32_t begin) : low(__shfl_sync(~0u, begin, 0)) {}

  // What lies `bytes` further on.
  ATTNLOOM_DEVICE uint64_t at(int bytes) const {
    return kSwizzle128 | kEightRows | (low + bytes / 16);
  }
};

// What this thread has written to shared memory by copies and stores can be read by products after the next barrier.
ATTNLOOM_DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Before products that take registers written since the last ones.
ATTNLOOM_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ATTNLOOM_DEVICE void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N groups of products are in flight.
template <int N>
ATTNLOOM_DEVICE void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps what is written to and read from registers on its side of the products around it.
template <class T, int N>
ATTNLOOM_DEVICE void settle(T (&x)[N][4]) {
#pragma unroll
  for (int t = 0; t < N; t++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if constexpr (std::is_same_v<T, float>) asm volatile("" : "+f"(x[t][e])::"memory");
      else asm volatile("" : "+r"(x[t][e])::"memory");
}

#define ATTNLOOM_REGISTERS_32                                                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "   \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define ATTNLOOM_REGISTERS_40 ATTNLOOM_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ATTNLOOM_REGISTERS_48 ATTNLOOM_REGISTERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ATTNLOOM_REGISTERS_56 ATTNLOOM_REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define ATTNLOOM_REGISTERS_64 ATTNLOOM_REGISTERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define ATTNLOOM_TILE(how, t) how(c[t][0]), how(c[t][1]), how(c[t][2]), how(c[t][3])
#define ATTNLOOM_TILES_2(how, t) ATTNLOOM_TILE(how, t), ATTNLOOM_TILE(how, t + 1)
#define ATTNLOOM_TILES_8(how) \
  ATTNLOOM_TILES_2(how, 0), ATTNLOOM_TILES_2(how, 2), ATTNLOOM_TILES_2(how, 4), ATTNLOOM_TILES_2(how, 6)
#define ATTNLOOM_TILES_10(how) ATTNLOOM_TILES_8(how), ATTNLOOM_TILES_2(how, 8)
#define ATTNLOOM_TILES_12(how) ATTNLOOM_TILES_10(how), ATTNLOOM_TILES_2(how, 10)
#define ATTNLOOM_TILES_14(how) ATTNLOOM_TILES_12(how), ATTNLOOM_TILES_2(how, 12)
#define ATTNLOOM_TILES_16(how) ATTNLOOM_TILES_14(how), ATTNLOOM_TILES_2(how, 14)

// c = a b^T, or c += a b^T, of 64 rows of a and 8 N rows of b, 16 columns of each, both in shared memory.
template <DType T, bool Add, int N>
ATTNLOOM_DEVICE void multiply_rows(float (&c)[N][4], uint64_t a, uint64_t b) {
#define ATTNLOOM_MULTIPLY(TYPE, HOW, COLUMNS, REGISTERS, TILES, A, B, ADD)                                                    \
  asm volatile("{.reg .pred add; setp.ne.b32 add, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE \
               " {" REGISTERS "}, " A ", " B ", add, 1, 1, 0, 0;}"                                                            \
               : TILES(HOW)                                                                                                   \
               : "l"(a), "l"(b), "n"(int{Add}))
#define ATTNLOOM_MULTIPLY_N(...)                                                \
  if constexpr (T == kBF16 && Add) ATTNLOOM_MULTIPLY("bf16", "+f", __VA_ARGS__); \
  else if constexpr (T == kBF16) ATTNLOOM_MULTIPLY("bf16", "=f", __VA_ARGS__);   \
  else if constexpr (Add) ATTNLOOM_MULTIPLY("f16", "+f", __VA_ARGS__);           \
  else ATTNLOOM_MULTIPLY("f16", "=f", __VA_ARGS__)
  static_assert(N == 8 || N == 16);
  if constexpr (N == 8) {
    ATTNLOOM_MULTIPLY_N("64", ATTNLOOM_REGISTERS_32, ATTNLOOM_TILES_8, "%32", "%33", "%34");
  } else {
    ATTNLOOM_MULTIPLY_N("128", ATTNLOOM_REGISTERS_64, ATTNLOOM_TILES_16, "%64", "%65", "%66");
  }
#undef ATTNLOOM_MULTIPLY_N
#undef ATTNLOOM_MULTIPLY
}

// c += a b, of 64 rows of a in fragments and 16 rows of b, 8 N columns, in shared memory.
template <DType T, int N>
ATTNLOOM_DEVICE void multiply_columns(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b) {
#define ATTNLOOM_MULTIPLY(TYPE, COLUMNS, REGISTERS, TILES, A0, A1, A2, A3, B)                                            \
  asm volatile("{.reg .pred add; setp.eq.b32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "."   \
               TYPE " {" REGISTERS "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", add, 1, 1, 1;}"                          \
               : TILES("+f")                                                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define ATTNLOOM_MULTIPLY_N(...)                             \
  if constexpr (T == kBF16) ATTNLOOM_MULTIPLY("bf16", __VA_ARGS__); \
  else ATTNLOOM_MULTIPLY("f16", __VA_ARGS__)
  static_assert(N == 8 || N == 10 || N == 12 || N == 14 || N == 16);
  if constexpr (N == 8) {
    ATTNLOOM_MULTIPLY_N("64", ATTNLOOM_REGISTERS_32, ATTNLOOM_TILES_8, "%32", "%33", "%34", "%35", "%36");
  } else if constexpr (N == 10) {
    ATTNLOOM_MULTIPLY_N("80", ATTNLOOM_REGISTERS_40, ATTNLOOM_TILES_10, "%40", "%41", "%42", "%43", "%44");
  } else if constexpr (N == 12) {
    ATTNLOOM_MULTIPLY_N("96", ATTNLOOM_REGISTERS_48, ATTNLOOM_TILES_12, "%48", "%49", "%50", "%51", "%52");
  } else if constexpr (N == 14) {
    ATTNLOOM_MULTIPLY_N("112", ATTNLOOM_REGISTERS_56, ATTNLOOM_TILES_14, "%56", "%57", "%58", "%59", "%60");
  } else {
    ATTNLOOM_MULTIPLY_N("128", ATTNLOOM_REGISTERS_64, ATTNLOOM_TILES_16, "%64", "%65", "%66", "%67", "%68");
  }
#undef ATTNLOOM_MULTIPLY_N
#undef ATTNLOOM_MULTIPLY
}

}  // namespace attnloom::cuda
