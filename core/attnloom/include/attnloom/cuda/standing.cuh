// Weights made while no row's m is expected to move, as it hardly ever does after a row's first keys: what has come out tells
// whether one would have had to.
#pragma once
#include "softmax.cuh"

namespace attnloom::cuda {

// Whether weights are made of products as they are, where keys follow each other.
template <class V>
constexpr bool kReadsProducts =
    V::use_softmax && !V::has_logits_mask && (!V::has_logits_transform || V::linear_in_distance || V::may_curve);

// How products of a row become weights where `power` tells which power of two each is.
template <class Power>
struct PowerRow {
  Power power;

  ATTNLOOM_DEVICE float2 weights(float x, float y, int onward) const { return {exp2(power(x, onward)), exp2(power(y, onward + 1))}; }
  ATTNLOOM_DEVICE bool holds() const { return true; }
};

// The same on the row's curve, in two terms where it is `Near` 0.
template <bool Near>
struct CurveRow {
  RowCurve of;
  float from;
  int largest = 0;  // x^2 so far, as bits

  ATTNLOOM_DEVICE CurveRow(const RowCurve& of, float m) : of(of), from(m * kLog2E) {}

  ATTNLOOM_DEVICE float2 weights(float x, float y, int) {
    // The two ways must not have their squares in common, or these are kept in registers that are not there.
    const float u = Near ? x * x : x * here(x), v = Near ? y * y : y * here(y);
    largest = larger(__float_as_int(u), __float_as_int(v), largest);
    return {exp2(x * slope(u) - from), exp2(y * slope(v) - from)};
  }
  ATTNLOOM_DEVICE bool holds() const { return __int_as_float(largest) <= (Near ? of.near_most : of.most); }
  ATTNLOOM_DEVICE bool is_near() const { return __int_as_float(largest) <= of.near_most; }

 private:
  ATTNLOOM_DEVICE float slope(float u) const { return Near ? of.near_slope(u) : of.slope(u); }
};

// Whether the lane's row g + 8 h is one of the first `count` of its warp. Queries past the last may be another request's, which
// have no say.
ATTNLOOM_DEVICE bool exists(int h, int count) { return lane_id() / 4 + 8 * h < count; }

// Makes weights of T of a warp's scores, and lets d grow by them. False if a row does not hold, or its m may have to move; d is as it
// was then. rows[h]: how row g + 8 h is read, of which the first `count` of a warp exist.
template <DType T, class S, class V, int N, class Row>
ATTNLOOM_DEVICE bool try_weights(const float (&s)[1][N][4], Weights<1, N>& p, State16<S, V, 1>& state, Row (&rows)[2], int count) {
  static_assert(2 * N <= Span<T>::kSummed);
  float sums[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float parts[2] = {};
#pragma unroll
    for (int t = 0; t < N; t++) {
      const float2 w = rows[h].weights(s[0][t][2 * h], s[0][t][2 * h + 1], 8 * t);
      parts[t % 2] += w.x + w.y;
      p[0][t / 2][t % 2 * 2 + h] = pack<T>(w.x, w.y);
    }
    sums[h] = parts[0] + parts[1];
  }
  bool right = true;
#pragma unroll
  for (int h = 0; h < 2; h++) right &= !exists(h, count) || (rows[h].holds() && sums[h] <= Span<T>::largest_sum);
  if (!__all_sync(~0u, right)) return false;
#pragma unroll
  for (int h = 0; h < 2; h++) state.d[0][h] += sums[h];
  return true;
}

// The same of products that all rows see, as `reading` or the curves of the lane's rows, 8 apart, tell. `beyond`: products of the tile
// before were not near 0.
template <class S, class V, int N>
ATTNLOOM_DEVICE bool weigh_standing(const float (&s)[1][N][4], Weights<1, N>& p, State16<S, V, 1>& state, const Reading<V, 1>& reading,
                                    const RowCurve* curves, bool& beyond, const Units<V>& units, int count) {
  const float(&m)[2] = state.m[0];
  if constexpr (V::may_curve) {
    if (!beyond) {
      CurveRow<true> rows[2] = {{curves[0], m[0]}, {curves[8], m[1]}};
      if (try_weights<S::T>(s, p, state, rows, count)) return true;
    }
    CurveRow<false> rows[2] = {{curves[0], m[0]}, {curves[8], m[1]}};
    const bool right = try_weights<S::T>(s, p, state, rows, count);
    beyond = __any_sync(~0u, (exists(0, count) && !rows[0].is_near()) || (exists(1, count) && !rows[1].is_near()));
    return right;
  } else {
    const auto power = [&](int h) { return reading.power(0, h, m[h], units.step); };
    PowerRow<decltype(power(0))> rows[2] = {{power(0)}, {power(1)}};
    return try_weights<S::T>(s, p, state, rows, count);
  }
}

}  // namespace attnloom::cuda
