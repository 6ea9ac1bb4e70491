// From scores to weights, in registers: the online softmax of a warp's rows.
#pragma once
#include "../state.h"
#include "scores.cuh"

namespace attnloom::cuda {

constexpr float kLowest = -1e36f;  // below every score, and finite when multiplied by a step

// A row's state in natural units: `m` before `unit`.
ATTNLOOM_DEVICE State natural(float m, float d, float unit) { return {d == 0.0f ? -inf : m * unit, d}; }

// The rows of one warp: which they are, what they see, their softmax so far. O~ lies in fragments.
template <class S, class V, int M>
struct State16 {
  float o[M][S::o_tiles][4];
  float m[M][2], d[M][2];  // of rows g and g + 8 of each 16; m before `unit`, kLowest at first; d of this lane's columns

  ATTNLOOM_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
      for (int t = 0; t < S::o_tiles; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[i][t][e] = 0.0f;
#pragma unroll
      for (int h = 0; h < 2; h++) m[i][h] = kLowest, d[i][h] = 0.0f;
    }
  }

  // The denominators of whole rows.
  ATTNLOOM_DEVICE void join_lanes() {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) d[i][h] = quad_sum(d[i][h]);
  }
};

// Weights as the left operand of their product with V.
template <int M, int N>
using Weights = uint32_t[M][N / 2][4];

// O~ and d divided by so many powers of two are still normal numbers.
constexpr float kKept = 120.0f;

// What O~ is multiplied by where a row's m has moved.
template <int M>
struct Rescale {
  float alpha[M][2];
  bool any;  // of the warp's rows

  template <int N>
  ATTNLOOM_DEVICE void apply(float (&o)[M][N][4]) const {
    if (!any) return;
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int t = 0; t < N; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[i][t][e] *= alpha[i][e / 2];
  }
};

// Powers of two that weights of T may be: a row's m moves once one exceeds 2^most, and stands so that the largest is 2^usual
// then. float16 keeps weights down to 2^-31 of that of m so; bfloat16 has 120 powers of two until O~ is rescaled, and keeps
// weights down to 2^-36 of the largest. Where so many of a row have at most the largest sum, each is finite in T; and if they
// have more, one exceeds 2^most.
template <DType T>
struct Span {
  static constexpr int kSummed = 32;
  static constexpr float usual = T == kF16 ? 7.0f : -90.0f, most = T == kF16 ? 10.0f : 30.0f;
  static constexpr float largest_sum = kSummed * (T == kF16 ? 1024.0f : 1073741824.0f);  // 2^most each
};

// How many sums, or maxima, of a row's scores are made side by side: one is waited for again and again, each takes registers.
template <int N>
constexpr int kChains = N > 8 ? 2 : 1;

ATTNLOOM_DEVICE int larger(int x, int y, int z) {
#if __CUDA_ARCH__ >= 900
  return __vimax3_s32(x, y, z);
#else
  return max(max(x, y), z);
#endif
}

// Not less than any of the scores; 0 where all are below, or a NaN.
template <int N>
ATTNLOOM_DEVICE float bound_of(const float (&s)[N][4], int h) {
#if __CUDA_ARCH__ >= 900
  int bounds[kChains<N>] = {};
#pragma unroll
  for (int t = 0; t < N; t++) {
    int& bound = bounds[t % kChains<N>];
    bound = __vimax3_s32_relu(__float_as_int(s[t][2 * h]), __float_as_int(s[t][2 * h + 1]), bound);
  }
  return __int_as_float(max(bounds[0], bounds[kChains<N> - 1]));
#else
  float bound = 0.0f;
#pragma unroll
  for (int t = 0; t < N; t++) bound = fmaxf(bound, fmaxf(s[t][2 * h], s[t][2 * h + 1]));
  return bound;
#endif
}

// Where a row's m stands once its largest score is `top`, if weights will be of T.
template <DType T>
ATTNLOOM_DEVICE float moved(float before, float top, float step) {
  const float rise = (top - before) * step;
  if (!(rise > Span<T>::most)) return before;
  // As long as the weights before may count, O~ is not divided by so much that nothing is left of it.
  const bool near = rise - Span<T>::usual > kKept && rise <= kKept + Span<T>::most;
  const float next = near ? before + kKept / step : top - Span<T>::usual / step;
  // Of a large one the product with `step` is rounded by more than weights have powers of two: rather none than infinite.
  const bool beyond = fmaf(top, step, -(next * step)) > Span<T>::most;
  return beyond ? next + fabsf(next) * 2.4e-7f : next;
}

// The largest score of a row, half h of a lane's.
template <int N, class Reading>
ATTNLOOM_DEVICE float top_of(const float (&s)[N][4], const Reading& reading, int i, int h) {
  float top = -inf;
#pragma unroll
  for (int t = 0; t < N; t++)
#pragma unroll
    for (int e = 2 * h; e < 2 * h + 2; e++) top = fmaxf(top, reading.logit(i, h, s[t][e], 8 * t + e % 2));
  return quad_max(top);
}

// Lets m and d follow the scores whose weights will be of T; `First`: of rows that have seen none before.
template <class S, class V, DType T, bool First = false, int M, int N, class Reading>
ATTNLOOM_DEVICE Rescale<M> follow(const float (&s)[M][N][4], const Reading& reading, State16<S, V, M>& state, float step) {
  Rescale<M> rescale{};
  bool some = First;
  if constexpr (!First) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        some |= (reading.bound(i, h, bound_of(s[i], h), 8 * N) - state.m[i][h]) * step > Span<T>::most;
    rescale.any = some = __any_sync(~0u, some);
  }
  if (some) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float before = First ? kLowest : state.m[i][h];
        state.m[i][h] = moved<T>(before, top_of(s[i], reading, i, h), step);
        if constexpr (First) continue;
        rescale.alpha[i][h] = exp2((before - state.m[i][h]) * step);
        state.d[i][h] *= rescale.alpha[i][h];
      }
  }
  return rescale;
}

// Half h of the scores becomes weights of T, `weight` of (score, keys after the lane's first), and d grows by them.
template <DType T, int N, class F>
ATTNLOOM_DEVICE void take_row(const float (&s)[N][4], uint32_t (&p)[N / 2][4], float& d, int h, F weight) {
  float sums[kChains<N>] = {};
#pragma unroll
  for (int t = 0; t < N; t++) {
    const float a = weight(s[t][2 * h], 8 * t), b = weight(s[t][2 * h + 1], 8 * t + 1);
    sums[t % kChains<N>] += a + b;
    p[t / 2][t % 2 * 2 + h] = pack<T>(a, b);
  }
  d += kChains<N> > 1 ? sums[0] + sums[kChains<N> - 1] : sums[0];
}

// Scores become weights of T, and d grows by them.
template <class S, class V, DType T, int M, int N>
ATTNLOOM_DEVICE void take_weights(const float (&s)[M][N][4], const Reading<V, M>& reading, Weights<M, N>& p,
                                  State16<S, V, M>& state, float step) {
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if constexpr (V::use_softmax) {
        const auto power = reading.power(i, h, state.m[i][h], step);
        take_row<T>(s[i], p[i], state.d[i][h], h, [&](float x, int onward) { return exp2(power(x, onward)); });
      } else {
        float unused = 0.0f;
        take_row<T>(s[i], p[i], unused, h, [](float x, int) { return x; });
      }
    }
}

// The largest magnitude of the scores; NaNs do not count.
template <int N>
ATTNLOOM_DEVICE float magnitude_of(const float (&s)[N][4], int h) {
  float largest = 0.0f;
#pragma unroll
  for (int t = 0; t < N; t++) largest = fmaxf(largest, fmaxf(fabsf(s[t][2 * h]), fabsf(s[t][2 * h + 1])));
  return largest;
}

// Whether products are on the curves of all rows; if so, m and d follow where `whole` says that all are seen.
template <class S, class V, DType T, int M, int N>
ATTNLOOM_DEVICE bool follow_curves(const float (&s)[M][N][4], const Reading<V, M>& reading, State16<S, V, M>& state, bool whole,
                                   Rescale<M>& rescale) {
  bool on_curve = true, still = true;
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float largest = magnitude_of(s[i], h);
      on_curve &= reading.holds(i, h, largest);
      still &= largest * reading.of[i][h].c1 <= state.m[i][h] * kLog2E + Span<T>::most;
    }
  if (__all_sync(~0u, on_curve & still)) return true;
  if (!__all_sync(~0u, on_curve)) return false;
  if (whole) rescale = follow<S, V, T>(s, OnCurves<V, M>{reading}, state, kLog2E);
  return true;
}

// Products on curves become weights of T, and d grows by them.
template <class S, class V, DType T, int M, int N>
ATTNLOOM_DEVICE void take_weights_on_curves(const float (&s)[M][N][4], const Reading<V, M>& reading, Weights<M, N>& p,
                                            State16<S, V, M>& state) {
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const auto power = reading.power_on_curve(i, h, state.m[i][h]);
      take_row<T>(s[i], p[i], state.d[i][h], h, [&](float x, int onward) { return exp2(power(x, onward)); });
    }
}

// The same of any products, of which it is known whether they are on their curves.
template <class S, class V, DType T = S::T, bool First = false, int M, int N, class R>
ATTNLOOM_DEVICE Rescale<M> weigh_each(float (&s)[M][N][4], Weights<M, N>& p, State16<S, V, M>& state, Reading<V, M> reading,
                                      const Pairs<V>& pairs, const R& rows, const Units<V>& units, int first_row, int first_key,
                                      const int* noted, bool whole, bool on_curve) {
  Rescale<M> rescale{};
  score<S, V>(s, reading, pairs, rows, units, first_row, first_key, noted, whole, on_curve);
  if constexpr (V::use_softmax) rescale = follow<S, V, T, First>(s, reading, state, units.step);
  take_weights<S, V, T>(s, reading, p, state, units.step);
  return rescale;
}

// One step of the online softmax: products of rows [first_row, ...) with keys from `first_key` on become weights of T. O~ is
// left to the caller. `reading`: what `read` says; the rest: see `score`.
template <class S, class V, DType T = S::T, int M, int N, class R>
ATTNLOOM_DEVICE Rescale<M> weigh(float (&s)[M][N][4], Weights<M, N>& p, State16<S, V, M>& state, Reading<V, M> reading,
                                 const Pairs<V>& pairs, const R& rows, const Units<V>& units, int first_row, int first_key,
                                 const int* noted, bool whole) {
  bool on_curve = false;
  if constexpr (V::may_curve) {
    Rescale<M> rescale{};
    if (!reading.found) reading.find(pairs, rows, units, first_row);
    on_curve = follow_curves<S, V, T>(s, reading, state, whole, rescale);
    if (on_curve && whole) {
      take_weights_on_curves<S, V, T>(s, reading, p, state);
      return rescale;
    }
  }
  return weigh_each<S, V, T>(s, p, state, reading, pairs, rows, units, first_row, first_key, noted, whole, on_curve);
}

}  // namespace attnloom::cuda
