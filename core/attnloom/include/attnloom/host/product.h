// The register-tiled matrix product, in float32 or in pairs of bfloat16.
#pragma once
#include "element.h"

namespace attnloom::host {

// Operands of one float32 a lane.
struct F32Arith {
  using Lane = float;
  using Lanes = Vec;
  static constexpr int step = 1;  // numbers of the contracted dimension in a lane
  static ATTNLOOM_FN Vec multiply_add(Vec sum, Vec a, Vec b) { return a * b + sum; }
};

#if defined(__AVX512BF16__)
// Operands of two neighbouring bfloat16 a lane, summed in float32.
struct BF16Arith {
  using Lane = uint32_t;
  using Lanes = UVec;
  static constexpr int step = 2;
  static ATTNLOOM_FN Vec multiply_add(Vec sum, UVec a, UVec b) {
    return bits_as<Vec>(_mm512_dpbf16_ps(bits_as<__m512>(sum), bits_as<__m512bh>(a), bits_as<__m512bh>(b)));
  }
};
#endif

// bfloat16 holds every fp8 number, so fp8 keys stay exact beside bfloat16 queries.
template <DType Q, DType KV>
struct ArithOf {
  using Type = F32Arith;
};
#if defined(__AVX512BF16__)
template <>
struct ArithOf<kBF16, kBF16> {
  using Type = BF16Arith;
};
template <>
struct ArithOf<kBF16, kE4M3> {
  using Type = BF16Arith;
};
template <>
struct ArithOf<kBF16, kE5M2> {
  using Type = BF16Arith;
};
#endif

// A lane of two bfloat16 from two floats, the first in the low half.
ATTNLOOM_FN UVec pair_lanes(Vec first, Vec second) { return bf16_bits<UVec>(first) | (bf16_bits<UVec>(second) << 16); }

// `count` floats (a multiple of kLanes * step, zero padded) as operand lanes of a row.
template <class A>
ATTNLOOM_FN void pack_row(const float* row, int count, typename A::Lane* lanes) {
  if constexpr (A::step == 1) {
    for (int i = 0; i < count; i += kLanes) store(lanes + i, load(row + i));
  } else {
    ATTNLOOM_LOOP
    for (int i = 0; i < count / 2; i++)
      lanes[i] = bf16_bits<uint32_t>(row[2 * i]) | (bf16_bits<uint32_t>(row[2 * i + 1]) << 16);
  }
}

enum class Into { scaled, sum };

// The right operand of a product: rows of whole vectors, `stride` lanes apart.
template <class A>
struct Packed {
  const typename A::Lane* rows;
  int stride;

  ATTNLOOM_FN typename A::Lanes operator()(int i, int vector) const {
    return load(rows + int64_t{i} * stride + vector * kLanes);
  }
};

// C[R][W * kLanes] = factor[0] * A B (scaled) or factor[r] * C + A B (sum), over `n` lanes of the contracted dimension:
// A is [R][n] with rows lda lanes apart, B(i, w) the w-th vector of row i.
template <class A, int R, int W, Into mode, class B>
ATTNLOOM_FN void multiply(int n, const typename A::Lane* a, int lda, const B& b, int first_vector, float* c, int ldc,
                          const float* factor) {
  c += first_vector * kLanes;
  Vec sum[R][W];
  ATTNLOOM_UNROLL
  for (int r = 0; r < R; r++)
    ATTNLOOM_UNROLL
    for (int w = 0; w < W; w++) sum[r][w] = mode == Into::sum ? load(c + r * ldc + w * kLanes) * factor[r] : Vec{};
  for (int i = 0; i < n; i++) {
    typename A::Lanes right[W];
    ATTNLOOM_UNROLL
    for (int w = 0; w < W; w++) right[w] = b(i, first_vector + w);
    ATTNLOOM_UNROLL
    for (int r = 0; r < R; r++) {
      const typename A::Lanes left = splat(a[r * lda + i]);
      ATTNLOOM_UNROLL
      for (int w = 0; w < W; w++) sum[r][w] = A::multiply_add(sum[r][w], left, right[w]);
    }
  }
  ATTNLOOM_UNROLL
  for (int r = 0; r < R; r++)
    ATTNLOOM_UNROLL
    for (int w = 0; w < W; w++) store(c + r * ldc + w * kLanes, mode == Into::sum ? sum[r][w] : sum[r][w] * factor[0]);
}

// C = factor C + A B for any number of columns: N vectors in register tiles of nearly equal width.
template <class A, int R, int N, class B>
ATTNLOOM_FN void multiply_wide(int n, const typename A::Lane* a, int lda, const B& b, float* c, const float* factor) {
  constexpr int tiles = (N + kTileVectors - 1) / kTileVectors, narrow = N / tiles, wider = N % tiles;
  for (int t = 0; t < wider; t++)
    multiply<A, R, (wider ? narrow + 1 : narrow), Into::sum>(n, a, lda, b, t * (narrow + 1), c, N * kLanes, factor);
  for (int t = wider; t < tiles; t++)
    multiply<A, R, narrow, Into::sum>(n, a, lda, b, t * narrow + wider, c, N * kLanes, factor);
}

}  // namespace attnloom::host
