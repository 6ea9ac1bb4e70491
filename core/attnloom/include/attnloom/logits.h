// What becomes of all logits of a row as one: what kernels may give functors that take any type of logit.
#pragma once
#include <type_traits>

#include "math.h"

namespace attnloom {

template <class T>
concept Number = std::is_arithmetic_v<T>;

// A difference of positions as a float, which costs a device less than to subtract and convert them: what it is at the first
// of a row's keys, and how much further a key is, a constant.
struct Distance {
  float first, onward;

  ATTNLOOM_FN operator float() const { return first + onward; }
};

// slope * distance + offset.
struct Bias {
  float slope;
  Distance distance;
  float offset;

  ATTNLOOM_FN operator float() const {
#if defined(__CUDA_ARCH__)
    return ::fmaf(slope, distance.onward, ::fmaf(slope, distance.first, offset));
#else
    return slope * static_cast<float>(distance) + offset;
#endif
  }
};

// Sums and multiples of distances and numbers are such again. All distances are those of one pair.
ATTNLOOM_FN Bias operator-(Distance x) { return {-1.0f, x, 0.0f}; }
ATTNLOOM_FN Bias operator-(Bias x) { return {-x.slope, x.distance, -x.offset}; }
template <Number T>
ATTNLOOM_FN Bias operator*(T factor, Distance x) { return {static_cast<float>(factor), x, 0.0f}; }
template <Number T>
ATTNLOOM_FN Bias operator*(Distance x, T factor) { return factor * x; }
template <Number T>
ATTNLOOM_FN Bias operator*(T factor, Bias x) {
  const float f = static_cast<float>(factor);
  return {f * x.slope, x.distance, f * x.offset};
}
template <Number T>
ATTNLOOM_FN Bias operator*(Bias x, T factor) { return factor * x; }
template <Number T>
ATTNLOOM_FN Bias operator+(Bias x, T number) { return {x.slope, x.distance, x.offset + static_cast<float>(number)}; }
template <Number T>
ATTNLOOM_FN Bias operator+(T number, Bias x) { return x + number; }
template <Number T>
ATTNLOOM_FN Bias operator-(Bias x, T number) { return x + -number; }
template <Number T>
ATTNLOOM_FN Bias operator-(T number, Bias x) { return number + -x; }
template <Number T>
ATTNLOOM_FN Bias operator+(Distance x, T number) { return 1.0f * x + number; }
template <Number T>
ATTNLOOM_FN Bias operator+(T number, Distance x) { return x + number; }
template <Number T>
ATTNLOOM_FN Bias operator-(Distance x, T number) { return x + -number; }
template <Number T>
ATTNLOOM_FN Bias operator-(T number, Distance x) { return number + -x; }
ATTNLOOM_FN Bias operator+(Bias x, Bias y) { return {x.slope + y.slope, x.distance, x.offset + y.offset}; }
ATTNLOOM_FN Bias operator-(Bias x, Bias y) { return x + -y; }
ATTNLOOM_FN Bias operator+(Bias x, Distance y) { return x + 1.0f * y; }
ATTNLOOM_FN Bias operator-(Bias x, Distance y) { return x + -y; }
ATTNLOOM_FN Bias operator+(Distance x, Bias y) { return y + x; }
ATTNLOOM_FN Bias operator-(Distance x, Bias y) { return 1.0f * x + -y; }

// Logits x that become x + offset + slope * distance.
struct Line {
  float offset, slope;
};
template <Number T>
ATTNLOOM_FN Line operator+(Line line, T number) { return {line.offset + static_cast<float>(number), line.slope}; }
ATTNLOOM_FN Line operator+(Line line, Bias bias) { return {line.offset + bias.offset, line.slope + bias.slope}; }
ATTNLOOM_FN Line operator+(Line line, Distance distance) { return line + 1.0f * distance; }
template <class T>
ATTNLOOM_FN Line operator+(T bias, Line line) { return line + bias; }
template <class T>
ATTNLOOM_FN Line operator-(Line line, T bias) { return line + -bias; }

// Logits x that become x (1 + c3 x^2 + c5 x^4 + c7 x^6), no larger than x in magnitude and no smaller than 0.9 of it, where
// |x| <= limit; with a limit below 0 nothing is known of them.
struct Curve {
  float c3, c5, c7, limit;

  static ATTNLOOM_FN Curve unknown() { return {0.0f, 0.0f, 0.0f, -1.0f}; }
};
template <Number T>
ATTNLOOM_FN Curve operator+(const Curve&, T) { return Curve::unknown(); }
template <Number T>
ATTNLOOM_FN Curve operator+(T, const Curve&) { return Curve::unknown(); }
template <Number T>
ATTNLOOM_FN Curve operator-(const Curve&, T) { return Curve::unknown(); }
// Who adds distances says `linear_in_distance`, or takes floats alone: where keys are listed, they have to be told apart.
Curve operator+(const Curve&, Bias) = delete;
Curve operator-(const Curve&, Bias) = delete;
Curve operator+(const Curve&, Distance) = delete;
Curve operator-(const Curve&, Distance) = delete;

// bound * tanh(x / bound), bound > 0, absolute error 5e-7 * bound.
ATTNLOOM_FN Curve soft_clamp(const Curve& x, float bound) {
  const float a = 1.0f / bound, square = a * a;
  const bool straight = x.c3 == 0.0f && x.limit == inf;
  if (!straight || !(bound > 1e-6f)) return Curve::unknown();
  return {-0.333264619f * square, 0.131858617f * square * square, -0.0442292877f * square * square * square, 0.5f * bound};
}

}  // namespace attnloom
