// A row of head_dim elements as a functor sees it: which elements this lane holds is the map's business.
#pragma once
#include "math.h"

namespace attnloom {

// Which elements a rotation pairs: i with i + R/2, or 2i with 2i + 1.
enum class Pair { half, adjacent };

// Turns a pair by the angle of a sine and a cosine.
ATTNLOOM_FN void turn_pair(float& a, float& b, float sine, float cosine) {
  const float first = a;
  a = first * cosine - b * sine;
  b = b * cosine + first * sine;
}

// Turns pair i of the first R elements by position * frequency(i) radians and multiplies it by `factor`, pair by pair.
template <class Map, Pair P, int R, class F>
ATTNLOOM_FN void rotate_pairs(typename Map::Storage& x, int position, F& frequency, float factor) {
  const auto turn = [&](int i, float& a, float& b) {
    float sine, cosine;
    sincos(static_cast<float>(position), frequency(i), sine, cosine);
    turn_pair(a, b, sine, cosine);
  };
  Map::template pairs<P, R>(x, turn);
  if (factor == 1.0f) return;
  const auto multiply = [factor](int d, float& element) {
    if (d < R) element *= factor;
  };
  Map::each(x, multiply);
}

// The whole row in a plain float array, on one lane.
template <int D>
struct HostMap {
  using Storage = float*;
  static constexpr int dims = D;

  template <class F>
  static ATTNLOOM_FN void each(float* x, F& f) {
    ATTNLOOM_LOOP
    for (int d = 0; d < D; d++) f(d, x[d]);
  }
  template <Pair P, int R, class F>
  static ATTNLOOM_FN void pairs(float* x, F& f) {
    ATTNLOOM_LOOP
    for (int i = 0; i < R / 2; i++) {
      if constexpr (P == Pair::half) f(i, x[i], x[i + R / 2]);
      else f(i, x[2 * i], x[2 * i + 1]);
    }
  }
  template <Pair P, int R, class F>
  static ATTNLOOM_FN void rotate(float*& x, int position, F& frequency, float factor) {
    rotate_pairs<HostMap, P, R>(x, position, frequency, factor);
  }
  template <class F>
  static ATTNLOOM_FN float sum(const float* x, F& f) {
    float total = 0.0f;
    ATTNLOOM_SUM_LOOP(total)
    for (int d = 0; d < D; d++) total += f(d, x[d]);
    return total;
  }
};

// Elements are float32; a chain of row functors rounds once, when the kernel stores the row. Calls may run in any order
// and on any lane, so `f` writes only the elements it is given.
template <class Map>
struct Row {
  static constexpr int dims = Map::dims;  // head_dim

  typename Map::Storage x;

  // f(d, element) for every element.
  template <class F>
  ATTNLOOM_FN void each(F f) {
    Map::each(x, f);
  }

  // f(i, first, second) for the pairs of the first R elements; the others are left alone.
  template <Pair P, int R = dims, class F>
  ATTNLOOM_FN void pairs(F f) {
    static_assert(R % 2 == 0 && 0 <= R && R <= dims, "pairs<Pair, R>: R must be even and at most head_dim");
    Map::template pairs<P, R>(x, f);
  }

  // Turns pair i of the first R elements by position * frequency(i) radians and multiplies it by `factor`. All tokens of a
  // request and head turn alike, so that a kernel may find a row's angles from another's: none is left out, `position` is
  // the token's plus what is the same for all (on devices at most 2^24), and so are frequency and factor.
  template <Pair P, int R = dims, class F>
  ATTNLOOM_FN void rotate(int position, F frequency, float factor = 1.0f) {
    static_assert(R % 2 == 0 && 0 <= R && R <= dims, "rotate<Pair, R>: R must be even and at most head_dim");
    Map::template rotate<P, R>(x, position, frequency, factor);
  }

  // The sum of f(d, element) over the row, the same on every lane.
  template <class F>
  ATTNLOOM_FN float sum(F f) const {
    return Map::sum(x, f);
  }
};

}  // namespace attnloom
