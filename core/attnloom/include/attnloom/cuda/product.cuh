// The two products of attention on the tensor cores, operands in swizzled shared memory.
#pragma once
#include "shape.cuh"
#include "softmax.cuh"

namespace attnloom::cuda {

// A warp's query rows: fragments, or where to load them from.
template <class S, int M, bool InRegisters>
struct Queries {
  uint32_t address;  // this lane's, of the first step
  uint32_t a[InRegisters ? M : 1][InRegisters ? S::k_steps : 1][4];

  // Rows [first_row, first_row + 16 M) of the tile at `q`.
  ATTNLOOM_DEVICE void take(uint32_t q, int first_row) {
    address = q + S::QTile::at(first_row + lane_id() % 16, lane_id() / 16);
    if constexpr (InRegisters)
#pragma unroll
      for (int i = 0; i < M; i++)
#pragma unroll
        for (int k = 0; k < S::k_steps; k++) load_matrices(a[i][k], place(i, k));
  }
  ATTNLOOM_DEVICE void get(uint32_t (&x)[4], int i, int k) const {
    if constexpr (InRegisters) {
#pragma unroll
      for (int e = 0; e < 4; e++) x[e] = a[i][k][e];
    } else {
      load_matrices(x, place(i, k));
    }
  }

 private:
  ATTNLOOM_DEVICE uint32_t place(int i, int k) const {
    return S::QTile::onward(here(address) + 16 * i * S::QTile::row_bytes, 2 * k);
  }
};

// Keys as right operands, from rows of 16-bit numbers.
template <class S>
struct KeyOperands {
  uint32_t at;  // this lane's part of the first load

  ATTNLOOM_DEVICE explicit KeyOperands(uint32_t k) : at(here(k + S::KTile::at(lane_id() / 16 * 8 + lane_id() % 8, lane_id() / 8 % 2))) {}

  // Of 16 keys from `key` on, those of step `step`: b0 and b1 of the first eight, then of the others.
  ATTNLOOM_DEVICE void get(uint32_t (&b)[4], int key, int step) const {
    load_matrices(b, S::KTile::onward(at + key * S::KTile::row_bytes, 2 * step));
  }
};

template <int M, int N>
ATTNLOOM_DEVICE void clear(float (&s)[M][N][4]) {
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int t = 0; t < N; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[i][t][e] = 0.0f;
}

// s = Q K^T for 8 N keys, operands of T.
template <class S, DType T, int M, bool InRegisters, int N, class Keys>
ATTNLOOM_DEVICE void multiply_keys(float (&s)[M][N][4], const Queries<S, M, InRegisters>& q, Keys keys) {
  clear(s);
#pragma unroll
  for (int step = 0; step < S::k_steps; step++) {
    uint32_t a[M][4];
#pragma unroll
    for (int i = 0; i < M; i++) q.get(a[i], i, step);
#pragma unroll
    for (int t = 0; t < N; t += 2) {
      uint32_t b[4];
      keys.get(b, 8 * t, step);
#pragma unroll
      for (int i = 0; i < M; i++) {
        multiply_add<T>(s[i][t], a[i], b[0], b[1]);
        multiply_add<T>(s[i][t + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// o += P V for 16 N keys whose rows begin at `v`.
template <class S, int M, int N>
ATTNLOOM_DEVICE void multiply_values(float (&o)[M][S::o_tiles][4], const uint32_t (&p)[M][N][4], uint32_t v) {
  const uint32_t at = here(v + S::VTile::at(lane_id() % 16, lane_id() / 16));
#pragma unroll
  for (int step = 0; step < N; step++) {
#pragma unroll
    for (int t = 0; t < S::o_tiles; t += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, S::VTile::onward(at + 16 * step * S::VTile::row_bytes, t));
#pragma unroll
      for (int i = 0; i < M; i++) {
        multiply_add<S::T>(o[i][t], p[i][step], b[0], b[1]);
        multiply_add<S::T>(o[i][t + 1], p[i][step], b[2], b[3]);
      }
    }
  }
}

}  // namespace attnloom::cuda
