// What becomes of all logits of a row as one: what kernels may give functors that take any type of logit.
#pragma once
#include "math.h"

namespace attnloom {

// A difference of positions as a float, which costs a device less than to subtract and convert them: what it is at the first
// of a row's keys, and how much further a key is, a constant.
struct Distance {
  float first, onward;

  ATTNLOOM_FN operator float() const { return first + onward; }
};

// slope * distance.
struct Bias {
  float slope;
  Distance distance;

  ATTNLOOM_FN operator float() const {
#if defined(__CUDA_ARCH__)
    return ::fmaf(slope, distance.onward, slope * distance.first);
#else
    return slope * static_cast<float>(distance);
#endif
  }
};
ATTNLOOM_FN Bias operator*(float slope, Distance distance) { return {slope, distance}; }
ATTNLOOM_FN Bias operator*(Distance distance, float slope) { return {slope, distance}; }
ATTNLOOM_FN Bias operator-(Bias bias) { return {-bias.slope, bias.distance}; }

// Logits x that become x + offset + slope * distance.
struct Line {
  float offset, slope;

  friend ATTNLOOM_FN Line operator+(Line line, float bias) { return {line.offset + bias, line.slope}; }
  friend ATTNLOOM_FN Line operator+(Line line, Bias bias) { return {line.offset, line.slope + bias.slope}; }
  friend ATTNLOOM_FN Line operator-(Line line, float bias) { return line + -bias; }
  friend ATTNLOOM_FN Line operator-(Line line, Bias bias) { return line + -bias; }
};

// Logits x that become x (1 + c3 x^2 + c5 x^4 + c7 x^6), no larger than x in magnitude and no smaller than 0.9 of it, where
// |x| <= limit; with a limit below 0 nothing is known of them.
struct Curve {
  float c3, c5, c7, limit;

  static ATTNLOOM_FN Curve unknown() { return {0.0f, 0.0f, 0.0f, -1.0f}; }
  friend ATTNLOOM_FN Curve operator+(const Curve&, float) { return unknown(); }
  friend ATTNLOOM_FN Curve operator-(const Curve&, float) { return unknown(); }
};

// bound * tanh(x / bound), bound > 0, absolute error 5e-7 * bound.
ATTNLOOM_FN Curve soft_clamp(const Curve& x, float bound) {
  const float a = 1.0f / bound, square = a * a;
  const bool straight = x.c3 == 0.0f && x.limit == inf;
  if (!straight || !(bound > 1e-6f)) return Curve::unknown();
  return {-0.333264619f * square, 0.131858617f * square * square, -0.0442292877f * square * square * square, 0.5f * bound};
}

}  // namespace attnloom
