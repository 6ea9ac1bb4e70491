// Intervals of kv_pos: what several kv_range functors leave visible together.
#pragma once
#include "variant.h"

namespace attnloom {

// Sorted, disjoint, none empty; at most N.
template <int N>
struct RangeSet {
  int count = 0;
  Range ranges[N] = {};

  ATTNLOOM_FN bool contains(int pos) const {
    bool inside = false;
    for (int i = 0; i < count; i++) inside |= (ranges[i].lo <= pos) & (pos < ranges[i].hi);
    return inside;
  }

  // The range that has every position of the set; empty where the set is.
  ATTNLOOM_FN Range hull() const { return count == 0 ? Range{0, 0} : Range{ranges[0].lo, ranges[count - 1].hi}; }

  ATTNLOOM_FN void append(Range r) {
    if (r.lo >= r.hi) return;
#if defined(__CUDA_ARCH__)
#pragma unroll
    for (int i = 0; i < N; i++)  // an index that the compiler knows keeps the ranges in registers
      if (i == count) ranges[i] = r;
    count++;
#else
    ranges[count++] = r;
#endif
  }
};

namespace detail {

ATTNLOOM_FN Range overlap(Range a, Range b) { return {max(a.lo, b.lo), min(a.hi, b.hi)}; }

template <int N>
ATTNLOOM_FN RangeSet<N> intersect(const RangeSet<N>& set, Range with) {
  RangeSet<N> out;
  for (int i = 0; i < set.count; i++) out.append(overlap(set.ranges[i], with));
  return out;
}

// The i-th of the set's ranges can meet both of `with`'s, so one more range may come out than went in.
template <int N>
ATTNLOOM_FN RangeSet<N> intersect(const RangeSet<N>& set, Ranges with) {
  if (with.b.lo < with.b.hi && with.b.lo < with.a.lo) with = {with.b, with.a};
  if (with.a.lo < with.a.hi) with.b.lo = max(with.b.lo, with.a.hi);
  RangeSet<N> out;
  for (int i = 0; i < set.count; i++) out.append(overlap(set.ranges[i], with.a));
  for (int i = 0; i < set.count; i++) out.append(overlap(set.ranges[i], with.b));
  return out;
}

}  // namespace detail
}  // namespace attnloom
