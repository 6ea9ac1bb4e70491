// Sets of key positions as intervals: what kv_range functors that were inferred from a Python mask compute with.
#pragma once
#include <cstdint>

#include "variant.h"

namespace attnloom::mods {

inline constexpr int64_t kNever = int64_t{1} << 62;  // beyond every position, as kAlways is before
inline constexpr int64_t kAlways = -kNever;

// Positions lo <= pos < hi.
struct Span {
  int64_t lo, hi;
};

// At most N intervals: one that may be empty, or several that are sorted, disjoint and not empty.
template <int N>
struct Region {
  int count = 0;
  Span spans[N] = {};

  // Adds one that begins after those that are there, joined to the last where they touch.
  ATTNLOOM_FN void append(Span span) {
    if (span.lo >= span.hi) return;
    if (count > 0 && span.lo <= spans[count - 1].hi) spans[count - 1].hi = span.hi > spans[count - 1].hi ? span.hi : spans[count - 1].hi;
    else spans[count++] = span;
  }
};

template <>
struct Region<1> {
  static constexpr int count = 1;
  Span spans[1];
};

ATTNLOOM_FN Region<1> from(int64_t lo) { return {{{lo, kNever}}}; }
ATTNLOOM_FN Region<1> below(int64_t hi) { return {{{kAlways, hi}}}; }
ATTNLOOM_FN Region<1> everything() { return {{{kAlways, kNever}}}; }

ATTNLOOM_FN Span overlap(Span a, Span b) { return {a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi}; }

ATTNLOOM_FN Region<1> both(Region<1> a, Region<1> b) { return {{overlap(a.spans[0], b.spans[0])}}; }

template <int A, int B>
ATTNLOOM_FN Region<A + B - 1> both(const Region<A>& a, const Region<B>& b) {
  Region<A + B - 1> out;
  for (int i = 0; i < a.count; i++)
    for (int j = 0; j < b.count; j++) out.append(overlap(a.spans[i], b.spans[j]));
  return out;
}

template <int A, int B>
ATTNLOOM_FN Region<A + B> either(const Region<A>& a, const Region<B>& b) {
  Region<A + B> out;
  int i = 0, j = 0;
  while (i < a.count || j < b.count) {
    const bool first = j == b.count || (i < a.count && a.spans[i].lo <= b.spans[j].lo);
    out.append(first ? a.spans[i++] : b.spans[j++]);
  }
  return out;
}

ATTNLOOM_FN Region<1> only_if(bool condition, Region<1> region) { return condition ? region : below(kAlways); }
template <int N>
ATTNLOOM_FN Region<N> only_if(bool condition, const Region<N>& region) {
  return condition ? region : Region<N>{};
}

ATTNLOOM_FN Region<1> all_if(bool condition, Region<1> region) { return condition ? everything() : region; }
template <int N>
ATTNLOOM_FN Region<N> all_if(bool condition, const Region<N>& region) {
  Region<N> all;
  all.append({kAlways, kNever});
  return condition ? all : region;
}

ATTNLOOM_FN Range to_range(Span span) { return {saturate(span.lo), saturate(span.hi)}; }

// What kv_range returns: more than two intervals lose their smallest gaps.
ATTNLOOM_FN Range as_ranges(Region<1> region) { return to_range(region.spans[0]); }
template <int N>
ATTNLOOM_FN Ranges as_ranges(Region<N> region) {
  while (region.count > 2) {
    int narrow = 1;
    for (int i = 2; i < region.count; i++)
      if (region.spans[i].lo - region.spans[i - 1].hi < region.spans[narrow].lo - region.spans[narrow - 1].hi) narrow = i;
    region.spans[narrow - 1].hi = region.spans[narrow].hi;
    for (int i = narrow + 1; i < region.count; i++) region.spans[i - 1] = region.spans[i];
    region.count--;
  }
  return {region.count > 0 ? to_range(region.spans[0]) : Range{0, 0}, region.count > 1 ? to_range(region.spans[1]) : Range{0, 0}};
}

// Thresholds: where a function of the position first reaches s, from where its argument must.

ATTNLOOM_FN int64_t negative(int64_t s) { return -s; }

// x - by reaches s, x + by does.
ATTNLOOM_FN int64_t plus(int64_t s, int64_t by) { return s <= kAlways || s >= kNever ? s : s + by; }
ATTNLOOM_FN int64_t minus(int64_t s, int64_t by) { return s <= kAlways || s >= kNever ? s : s - by; }

// x / by rounded down reaches s, by > 0.
ATTNLOOM_FN int64_t times(int64_t s, int64_t by) {
  if (s > kNever / by) return kNever;
  return s < kAlways / by ? kAlways : s * by;
}

// x / by rounded up does: one past (s - 1) * by.
ATTNLOOM_FN int64_t past_times(int64_t s, int64_t by) { return plus(times(minus(s, 1), by), 1); }

// x * by does: s / by rounded up.
ATTNLOOM_FN int64_t ceil_quotient(int64_t s, int64_t by) {
  if (s <= kAlways || s >= kNever) return s;
  return s / by + (s % by > 0);
}

// The larger of x and a limit does; the smaller does.
ATTNLOOM_FN int64_t raised(int64_t s, int64_t limit) { return limit >= s ? kAlways : s; }
ATTNLOOM_FN int64_t capped(int64_t s, int64_t limit) { return limit >= s ? s : kNever; }

// The first of `size` ascending elements that does; `size` where none.
template <class Read>
ATTNLOOM_FN int64_t first_reaching(int64_t size, int64_t s, Read read) {
  int64_t lo = 0, hi = size;
  while (lo < hi) {
    const int64_t middle = lo + (hi - lo) / 2;
    if (read(middle) >= s) hi = middle;
    else lo = middle + 1;
  }
  return lo;
}

}  // namespace attnloom::mods
