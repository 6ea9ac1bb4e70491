// Weights made while no row's m is expected to move, as it hardly ever does after a row's first keys: what has come out tells
// whether one would have had to.
#pragma once
#include "softmax.cuh"

namespace attnloom::cuda {

// Whether weights are made of products as they are, where keys follow each other.
template <class V>
constexpr bool kReadsProducts =
    V::use_softmax && !V::has_logits_mask && (!V::has_logits_transform || V::linear_in_distance || V::may_curve);

// Whether weights take longer than products do, so that some are made while products are in flight.
template <class V>
constexpr bool kMadeAside = kReadsProducts<V> && V::has_logits_transform;

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

 private:
  ATTNLOOM_DEVICE float slope(float u) const { return Near ? of.near_slope(u) : of.slope(u); }
};

// Weights of a lane's part of a row of 8 N keys, as operands; with their sum, and whether all products were where their row is told.
template <int N>
struct RowWeights {
  uint32_t pairs[N];
  float sum;
  bool holds;
};

template <DType T, int N, class Row>
ATTNLOOM_DEVICE RowWeights<N> weigh_row(const float (&s)[N][4], int h, Row row) {
  static_assert(2 * N <= Span<T>::kSummed);
  RowWeights<N> made;
  float parts[2] = {};
#pragma unroll
  for (int t = 0; t < N; t++) {
    const float2 w = row.weights(s[t][2 * h], s[t][2 * h + 1], 8 * t);
    parts[t % 2] += w.x + w.y;
    made.pairs[t] = pack<T>(w.x, w.y);
  }
  made.sum = parts[0] + parts[1];
  made.holds = row.holds();
  return made;
}

// The same of the lane's row h, whose products stand in the tile's scores and all are seen. `curves`: of the lane's rows, 8 apart;
// `beyond`: products of a tile before were not near 0.
template <class S, class V, int N>
ATTNLOOM_DEVICE RowWeights<N> weigh_standing(const float (&s)[1][N][4], int h, const State16<S, V, 1>& state, const Reading<V, 1>& reading,
                                             const RowCurve* curves, bool beyond, const Units<V>& units) {
  const float m = state.m[0][h];
  if constexpr (V::may_curve) {
    if (beyond) return weigh_row<S::T>(s[0], h, CurveRow<false>{curves[8 * h], m});
    return weigh_row<S::T>(s[0], h, CurveRow<true>{curves[8 * h], m});
  } else {
    const auto power = reading.power(0, h, m, units.step);
    return weigh_row<S::T>(s[0], h, PowerRow<decltype(power)>{power});
  }
}

}  // namespace attnloom::cuda
