// A row spread over lanes: what row functors see on the device.
#pragma once
#include "../variant.h"
#include "mma.cuh"

namespace attnloom::cuda {

// A row of D elements over G lanes that are `Stride` apart: the l-th of them holds the units of W neighbouring elements
// u = l, l + G, ... Fragments of the tensor cores are such rows. All 32 lanes of the warp run every call together.
template <int D, int G, int W = 2, int Stride = 1>
struct SpreadMap {
  static_assert(W == 2 || W == 4);
  static constexpr int dims = D;
  static constexpr int width = W;
  static constexpr int units = D / W;
  static constexpr int held = (units + G - 1) / G;

  struct Storage {
    float at[held][W];
  };

  static ATTNLOOM_DEVICE int place() { return lane_id() / Stride & (G - 1); }
  static ATTNLOOM_DEVICE int unit(int i) { return place() + G * i; }
  static ATTNLOOM_DEVICE bool holds(int i) { return units % G == 0 || unit(i) < units; }

  template <class F>
  static ATTNLOOM_DEVICE void each(Storage& x, F& f) {
    const int first = W * place();
#pragma unroll
    for (int i = 0; i < held; i++) {
      if (units % G != 0 && first + W * G * i >= D) continue;
#pragma unroll
      for (int e = 0; e < W; e++) f(first + W * G * i + e, x.at[i][e]);
    }
  }

  template <Pair P, int R, class F>
  static ATTNLOOM_DEVICE void pairs(Storage& x, F& f) {
    const int first = W * place();
    if constexpr (P == Pair::adjacent) {
#pragma unroll
      for (int i = 0; i < held; i++)
#pragma unroll
        for (int e = 0; e < W; e += 2)
          if (first + W * G * i + e < R) f(first / 2 + (W * G * i + e) / 2, x.at[i][e], x.at[i][e + 1]);
    } else if constexpr (R / 2 % (W * G) == 0) {  // both halves of a pair in one lane
      constexpr int apart = R / 2 / (W * G);
#pragma unroll
      for (int i = 0; i < apart; i++)
#pragma unroll
        for (int e = 0; e < W; e++) f(first + W * G * i + e, x.at[i][e], x.at[i + apart][e]);
    } else {
      pairs_apart<R>(x, f);
    }
  }

  template <class F>
  static ATTNLOOM_DEVICE float sum(const Storage& x, F& f) {
    const int first = W * place();
    float part[W] = {};
#pragma unroll
    for (int i = 0; i < held; i++) {
      if (units % G != 0 && first + W * G * i >= D) continue;
#pragma unroll
      for (int e = 0; e < W; e++) part[e] += f(first + W * G * i + e, x.at[i][e]);
    }
    float total = part[0] + part[1];
    if constexpr (W == 4) total += part[2] + part[3];
#pragma unroll
    for (int apart = 1; apart < G; apart *= 2) total += __shfl_xor_sync(~0u, total, apart * Stride);
    return total;
  }

 private:
  // Every lane gets both elements of every pair, and keeps what is its own.
  template <int R, class F>
  static ATTNLOOM_DEVICE void pairs_apart(Storage& x, F& f) {
    const int first_lane = lane_id() - place() * Stride;
    const auto from = [&](int d) { return __shfl_sync(~0u, x.at[d / W / G][d % W], first_lane + d / W % G * Stride); };
    const auto put = [&](int d, float value) {
      if (place() == d / W % G) x.at[d / W / G][d % W] = value;
    };
#pragma unroll
    for (int i = 0; i < R / 2; i++) {
      float a = from(i), b = from(i + R / 2);
      f(i, a, b);
      put(i, a);
      put(i + R / 2, b);
    }
  }
};

}  // namespace attnloom::cuda
