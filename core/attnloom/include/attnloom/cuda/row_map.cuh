// A row spread over lanes: what row functors see on the device.
#pragma once
#include "../variant.h"
#include "mma.cuh"

namespace attnloom::cuda {

// A row of D elements over G neighbouring lanes: lane l of them holds the pairs of elements (2 u, 2 u + 1) for
// u = l, l + G, ... With G = 4 that is the fragment of a tensor core. All 32 lanes of the warp run every call together.
template <int D, int G>
struct SpreadMap {
  static constexpr int dims = D;
  static constexpr int units = D / 2;
  static constexpr int held = (units + G - 1) / G;

  struct Storage {
    float at[held][2];
  };

  static ATTNLOOM_DEVICE int unit(int i) { return (lane_id() & (G - 1)) + G * i; }
  static ATTNLOOM_DEVICE bool holds(int i) { return units % G == 0 || unit(i) < units; }

  template <class F>
  static ATTNLOOM_DEVICE void each(Storage& x, F& f) {
#pragma unroll
    for (int i = 0; i < held; i++) {
      if (!holds(i)) continue;
      f(2 * unit(i), x.at[i][0]);
      f(2 * unit(i) + 1, x.at[i][1]);
    }
  }

  template <Pair P, int R, class F>
  static ATTNLOOM_DEVICE void pairs(Storage& x, F& f) {
    if constexpr (P == Pair::adjacent) {
#pragma unroll
      for (int i = 0; i < held; i++)
        if (unit(i) < R / 2) f(unit(i), x.at[i][0], x.at[i][1]);
    } else if constexpr (R / 2 % (2 * G) == 0) {  // both halves of a pair in one lane
      constexpr int apart = R / 2 / (2 * G);
#pragma unroll
      for (int i = 0; i < apart; i++) {
        f(2 * unit(i), x.at[i][0], x.at[i + apart][0]);
        f(2 * unit(i) + 1, x.at[i][1], x.at[i + apart][1]);
      }
    } else {
      pairs_apart<R>(x, f);
    }
  }

  template <class F>
  static ATTNLOOM_DEVICE float sum(const Storage& x, F& f) {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < held; i++)
      if (holds(i)) total += f(2 * unit(i), x.at[i][0]) + f(2 * unit(i) + 1, x.at[i][1]);
#pragma unroll
    for (int apart = 1; apart < G; apart *= 2) total += __shfl_xor_sync(~0u, total, apart);
    return total;
  }

 private:
  // Every lane gets both elements of every pair, and keeps what is its own.
  template <int R, class F>
  static ATTNLOOM_DEVICE void pairs_apart(Storage& x, F& f) {
    const int lane = lane_id() & (G - 1);
#pragma unroll
    for (int i = 0; i < R / 2; i++) {
      const int j = i + R / 2;
      float a = __shfl_sync(~0u, x.at[i / 2 / G][i % 2], i / 2 % G, G);
      float b = __shfl_sync(~0u, x.at[j / 2 / G][j % 2], j / 2 % G, G);
      f(i, a, b);
      if (lane == i / 2 % G) x.at[i / 2 / G][i % 2] = a;
      if (lane == j / 2 % G) x.at[j / 2 / G][j % 2] = b;
    }
  }
};

}  // namespace attnloom::cuda
