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
  static constexpr int lanes = G;
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
    if constexpr (together<P, R>) numbered_pairs<P, R>(x, [&f](int, int i, float& a, float& b) { f(i, a, b); });
    else pairs_apart<R>(x, f);
  }

  template <Pair P, int R, class F>
  static ATTNLOOM_DEVICE void rotate(Storage& x, int position, F& frequency, float factor) {
    rotate_pairs<SpreadMap, P, R>(x, position, frequency, factor);
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

 protected:
  // Whether a lane has both elements of its pairs.
  template <Pair P, int R>
  static constexpr bool together = P == Pair::adjacent || R / 2 % (W * G) == 0;

  // f(n, i, first, second) for the n-th pair of this lane, the i-th of the row.
  template <Pair P, int R, class F>
  static ATTNLOOM_DEVICE void numbered_pairs(Storage& x, F f) {
    const int first = W * place();
    if constexpr (P == Pair::adjacent) {
#pragma unroll
      for (int k = 0; k < held; k++)
#pragma unroll
        for (int e = 0; e < W; e += 2)
          if (first + W * G * k + e < R) f((W * k + e) / 2, first / 2 + (W * G * k + e) / 2, x.at[k][e], x.at[k][e + 1]);
    } else {
      constexpr int apart = R / 2 / (W * G);
#pragma unroll
      for (int k = 0; k < apart; k++)
#pragma unroll
        for (int e = 0; e < W; e++) f(W * k + e, first + W * G * k + e, x.at[k][e], x.at[k + apart][e]);
    }
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

// The angles of the row that a lane turned last, and of a turn by one position.
template <class Map>
struct Turn {
  static constexpr int most = (Map::held + 1) / 2 * Map::width;  // pairs of a lane
  float sine[most], cosine[most], step_sine[most], step_cosine[most];
};

// A row of a lane, the first of several whose positions follow each other or one `After` another.
template <class Map, bool After>
struct TurnMap : Map {
  struct Storage : Map::Storage {
    Turn<Map>& turn;
    bool turned = false;  // by the first rotation of the row, the one whose angles are kept
  };

  template <Pair P, int R, class F>
  static ATTNLOOM_DEVICE void rotate(Storage& x, int position, F& frequency, float factor) {
    if constexpr (Map::template together<P, R>)
      if (!x.turned) return turn<P, R>(x, position, frequency, factor);
    Map::template rotate<P, R>(x, position, frequency, factor);
  }

 private:
  template <Pair P, int R, class F>
  static ATTNLOOM_DEVICE void turn(Storage& x, int position, F& frequency, float factor) {
    x.turned = true;
    Map::template numbered_pairs<P, R>(x, [&, &turn = x.turn](int n, int i, float& a, float& b) {
      float &sine = turn.sine[n], &cosine = turn.cosine[n];
      if constexpr (After) {
        const float before = cosine;
        cosine = before * turn.step_cosine[n] - sine * turn.step_sine[n];
        sine = sine * turn.step_cosine[n] + before * turn.step_sine[n];
      } else {
        const float radians = frequency(i);
        sincos(static_cast<float>(position), radians, sine, cosine);
        sine *= factor, cosine *= factor;
        sincos(1.0f, radians, turn.step_sine[n], turn.step_cosine[n]);
      }
      turn_pair(a, b, sine, cosine);
    });
  }
};

}  // namespace attnloom::cuda
