// The contract of attention variants. A variant is an empty struct that defines any of
//
//   template <class Params, class Row> void query_transform(const Params&, Row&, const Site&) const
//   template <class Params, class Row> void key_transform(const Params&, Row&, const Site&) const
//   template <class Params, class Row> void value_transform(const Params&, Row&, const Site&) const
//   template <class Params>            float logits_transform(const Params&, float logit, const Site&) const
//     or, where it does not matter which key, template <class Params, class Logit> with `Logit logit`, and returning Logit:
//     a kernel may ask once what becomes of all logits of a row; see logits.h for what can be done with these
//   template <class Params>            bool logits_mask(const Params&, const Site&) const        true keeps the pair
//   template <class Params>            Range kv_range(const Params&, const Site&) const          or Ranges; of kv_pos
//   template <class Params>            RowInit row_init(const Params&, const Site&) const
//   template <class Params, class Row> void output_transform(const Params&, Row&, const Site&) const
//   static constexpr bool use_softmax        false: the transformed logit is the weight
//   static constexpr bool range_monotone     the ends of kv_range never decrease as q_pos grows
//   static constexpr bool range_head_uniform kv_range does not depend on the head
//   static constexpr bool linear_in_distance logits_transform, of any type of logit, adds numbers and multiples of site.distance
//   template <class Params> static constexpr int rotated_dims   elements that row.rotate turns: kernels lay keys out for it
//
// each marked ATTNLOOM_FN and pure: a functor may run more than once for a pair, and for pairs that a mask hides.
// `Params` holds the variant's own parameters under their names: p.cap, p.slopes(head), Params::rotary_dim.
#pragma once
#include <cstdint>
#include <limits>

#include "fn.h"
#include "logits.h"
#include "math.h"
#include "row.h"
#include "tensor_ref.h"

namespace attnloom {

// Where a functor is called. Indices are ordinals in the request; positions say where a token sits in its sequence.
// key_transform and value_transform see q_index = -1, q_pos = 0 and qo_head = -1; query_transform, output_transform,
// kv_range and row_init see kv_index = -1 and kv_pos = -1.
struct Site {
  int request, qo_head, kv_head, q_index, kv_index, q_pos, kv_pos, qo_len, kv_len;
  Distance distance{};  // kv_pos - q_pos of a pair
};

inline constexpr int kPosMin = std::numeric_limits<int>::min();
inline constexpr int kPosMax = std::numeric_limits<int>::max();

// The nearest position that an int holds.
ATTNLOOM_FN int saturate(int64_t pos) {
  return pos < kPosMin ? kPosMin : pos > kPosMax ? kPosMax : static_cast<int>(pos);
}

// Positions lo <= kv_pos < hi; empty where lo >= hi.
struct Range {
  int lo, hi;
};

// Two disjoint ranges, `a` before `b`; either may be empty.
struct Ranges {
  Range a, b;
};

// What joins a row's softmax state once: as one more key of logit m, d times, without a value.
struct RowInit {
  float m, d;
};

}  // namespace attnloom
