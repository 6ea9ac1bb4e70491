// The products of few rows with slices of keys, which lie in shared memory as the cache stores them: what has to be
// done to them first, fp8 to be widened or rows to be transformed, is done to the operands in registers.
#pragma once
#include "product.cuh"

namespace attnloom::cuda {

// What operands are made of. All fp8 numbers are float16 numbers and few instructions make them so; only what a transform
// or a weight that is no softmax's may exceed is of q's dtype.
template <class S, class V>
struct OperandTypes {
  static constexpr DType keys = S::narrow && !V::has_key_transform ? kF16 : S::T;
  static constexpr DType values = S::narrow && V::use_softmax && !V::has_value_transform ? kF16 : S::T;
  // Of queries that change their dtype, so that they may reach 2^20; below 2^-13 they lose bits.
  static constexpr float query_factor = keys == S::T ? 1.0f : 0x1p-4f;
};

// Makes queries in shared memory ready for fp8 keys, by all threads: of each 16 elements a lane's operands have four
// neighbours, two of them in the first eight.
template <class S, class V>
ATTNLOOM_DEVICE void arrange_queries(char* q, int tile_rows) {
  using Types = OperandTypes<S, V>;
  const auto convert = [](uint32_t pair) {
    if constexpr (Types::keys == S::T) return pair;
    float a, b;
    unpack<S::T>(pair, a, b);
    return pack<Types::keys>(a * Types::query_factor, b * Types::query_factor);
  };
#pragma unroll 1
  for (int n = threadIdx.x; n < tile_rows * S::k_steps; n += S::threads) {
    const int row = n / S::k_steps, step = n % S::k_steps;
    auto& first = *reinterpret_cast<uint4*>(q + S::QTile::at(row, 2 * step));
    auto& second = *reinterpret_cast<uint4*>(q + S::QTile::at(row, 2 * step + 1));
    const uint4 a = first, b = second;
    first = {convert(a.x), convert(a.z), convert(b.x), convert(b.z)};
    second = {convert(a.y), convert(a.w), convert(b.y), convert(b.w)};
  }
}

// Keys of fp8 as right operands of T: of each 16 elements lane c has the four from 4 c on.
template <class S, DType T>
struct NarrowKeyOperands {
  uint32_t at;        // this lane's part of the first load
  uint32_t words[S::slices][4];  // of two steps

  ATTNLOOM_DEVICE explicit NarrowKeyOperands(uint32_t k)
      : at(here(k + S::StoredKTile::at(lane_id() / 16 * 8 + lane_id() % 8, lane_id() / 8 % 2))) {}

  ATTNLOOM_DEVICE void get(uint32_t (&b)[4], int key, int step) {
    auto& held = words[key / kSlice];
    if (step % 2 == 0) load_matrices(held, S::StoredKTile::onward(at + key * S::StoredKTile::row_bytes, step));
    widen<T, S::kv>(held[step % 2], b[0], b[1]);
    widen<T, S::kv>(held[2 + step % 2], b[2], b[3]);
  }
};

// Eight keys as right operands, a column each, that row functors see: lane 4 g + c has a part of key g. fp8 ones are of
// float16 until then.
template <class S>
struct KeyColumns {
  using Map = SpreadMap<S::head_dim, 4, 4 / S::key_bytes>;
  static constexpr int pieces = S::StoredKTile::pieces;
  static constexpr DType untransformed = S::narrow ? kF16 : S::T;

  uint32_t b[S::k_steps][2];

  // Those whose rows begin at `k`.
  ATTNLOOM_DEVICE explicit KeyColumns(uint32_t k) {
    const uint32_t at = here(k + S::StoredKTile::at(lane_id() % 8, lane_id() / 8));
#pragma unroll
    for (int n = 0; n < pieces; n += 4) {
      uint32_t words[4];
      load_matrices(words, S::StoredKTile::onward(at, n));
#pragma unroll
      for (int i = 0; i < 4 && n + i < pieces; i++) {
        if constexpr (S::narrow) widen<untransformed, S::kv>(words[i], b[n + i][0], b[n + i][1]);
        else b[(n + i) / 2][i % 2] = words[i];
      }
    }
  }

  // The key of which this lane has a part, through f(row).
  template <class F>
  ATTNLOOM_DEVICE void transform(F f) {
    Row<Map> row;
    const auto pair = [&row](int step, int h) -> float(&)[Map::width] { return row.x.at[S::narrow ? step : 2 * step + h]; };
#pragma unroll
    for (int step = 0; step < S::k_steps; step++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int e = S::narrow ? 2 * h : 0;
        unpack<untransformed>(b[step][h], pair(step, h)[e], pair(step, h)[e + 1]);
      }
    f(row);
#pragma unroll
    for (int step = 0; step < S::k_steps; step++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int e = S::narrow ? 2 * h : 0;
        b[step][h] = pack<S::T>(pair(step, h)[e], pair(step, h)[e + 1]);
      }
  }
};

// s = Q K^T for 8 N keys at `at`.
template <class S, class V, int M, bool InRegisters, int N>
ATTNLOOM_DEVICE void multiply_stored_keys(float (&s)[M][N][4], const Queries<S, M, InRegisters>& q, char* at,
                                          const SliceTransforms<V>& transforms) {
  const uint32_t k = shared_address(at);
  if constexpr (V::has_key_transform && !S::narrow && (S::head_dim > 128 || KeyRows<S, V, typename S::StoredKTile>::turns)) {
    // Angles are found from other keys', or a quarter of a row, and O~, are more than a lane's registers hold.
    transform_keys<S, V, typename S::StoredKTile>(at, transforms);
    multiply_keys<S, S::T>(s, q, KeyOperands<S>(k));
  } else if constexpr (V::has_key_transform) {
    constexpr int at_once = S::head_dim > 128 ? 1 : N;  // eights of keys, as registers allow
#pragma unroll at_once
    for (int t = 0; t < N; t++) {
      KeyColumns<S> keys(k + 8 * t * S::StoredKTile::row_bytes);
      keys.transform([&](auto& row) { transforms.key(8 * t + lane_id() / 4, row); });
      float part[M][1][4];
      clear(part);
#pragma unroll
      for (int step = 0; step < S::k_steps; step++)
#pragma unroll
        for (int i = 0; i < M; i++) {
          uint32_t a[4];
          q.get(a, i, step);
          multiply_add<S::T>(part[i][0], a, keys.b[step][0], keys.b[step][1]);
        }
      // No array of registers can be indexed by a number that is only known when the kernel runs.
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
          for (int e = 0; e < 4; e++)
            if (n == t) s[i][n][e] = part[i][0][e];
    }
  } else if constexpr (S::narrow) {
    multiply_keys<S, OperandTypes<S, V>::keys>(s, q, NarrowKeyOperands<S, OperandTypes<S, V>::keys>(k));
  } else {
    multiply_keys<S, S::T>(s, q, KeyOperands<S>(k));
  }
}

// Values of fp8 as right operands of T: of each 16 columns the even ones, then the odd ones. Lane 4 g + c has columns 2 g and
// 2 g + 1 of keys 2 c, 2 c + 1 (b0) and 2 c + 8, 2 c + 9 (b1).
template <class S, DType T>
struct NarrowValueOperands {
  using Tile = typename S::StoredVTile;
  using Map = SpreadMap<S::head_dim_v, 8, 2, 4>;

  uint32_t b[Tile::pieces][2][2];

  ATTNLOOM_DEVICE explicit NarrowValueOperands(uint32_t v) {
    const int row = lane_id() % 16;
    const uint32_t at = here(v + Tile::at(row, lane_id() / 16));
#pragma unroll
    for (int n = 0; n < Tile::pieces; n += 2) {
      uint32_t words[4];
      load_matrices_transposed(words, n + 1 < Tile::pieces ? Tile::onward(at, n) : v + Tile::at(row, n));
#pragma unroll
      for (int i = 0; i < 4 && n + i / 2 < Tile::pieces; i++)
        widen_apart<T, S::kv>(words[i], b[n + i / 2][0][i % 2], b[n + i / 2][1][i % 2]);
    }
  }

  // The values of which this lane has a part, through f(j, row).
  template <class F>
  ATTNLOOM_DEVICE void transform(F f) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      Row<Map> rows[2];
#pragma unroll
      for (int n = 0; n < Tile::pieces; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) unpack<T>(b[n][e][h], rows[0].x.at[n][e], rows[1].x.at[n][e]);
#pragma unroll
      for (int r = 0; r < 2; r++) f(8 * h + 2 * (lane_id() % 4) + r, rows[r]);
#pragma unroll
      for (int n = 0; n < Tile::pieces; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) b[n][e][h] = pack<T>(rows[0].x.at[n][e], rows[1].x.at[n][e]);
    }
  }
};

// o += P V for 16 N values at `at`. fp8: tiles 2 n and 2 n + 1 of o have the even and the odd columns of the n-th 16.
template <class S, class V, int M, int N, class Seen>
ATTNLOOM_DEVICE void multiply_stored_values(float (&o)[M][S::o_tiles][4], const uint32_t (&p)[M][N][4], char* at,
                                            const SliceTransforms<V>& transforms, const Seen& seen) {
  using Tile = typename S::StoredVTile;
#pragma unroll
  for (int n = 0; n < N; n++) {
    const auto transform = [&](int j, auto& row) { transforms.value(n * kSlice + j, row, seen); };
    char* slice = at + n * kSlice * Tile::row_bytes;
    if constexpr (S::narrow) {
      constexpr DType T = OperandTypes<S, V>::values;
      NarrowValueOperands<S, T> values(shared_address(slice));
      if constexpr (V::has_value_transform) values.transform(transform);
#pragma unroll
      for (int t = 0; t < S::o_tiles; t++)
#pragma unroll
        for (int i = 0; i < M; i++)
          multiply_add<T>(o[i][t], p[i][n], values.b[t / 2][t % 2][0], values.b[t / 2][t % 2][1]);
    } else if constexpr (V::has_value_transform) {
      transform_rows<SharedRows<S::T, S::kv, S::head_dim_v, Tile, 0>>(slice, transform);
    }
  }
  if constexpr (!S::narrow) multiply_values<S>(o, p, shared_address(at));
}

}  // namespace attnloom::cuda
