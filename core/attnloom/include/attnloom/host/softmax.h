// From products to weights: scores of a row, and the step of the online softmax over a tile.
#pragma once
#include "../state.h"
#include "keys.h"

namespace attnloom::host {

// A score that a mask hides: no logit, or no weight.
template <class V>
inline constexpr float kHidden = V::use_softmax ? -inf : 0.0f;

ATTNLOOM_FN void fill(float* s, int begin, int end, float x) {
  for (int j = begin; j < end; j++) s[j] = x;
}

// Hides the keys [begin, end) of the tile whose bit in the row's packed mask is clear.
inline void apply_mask_bits(const uint32_t* words, int64_t first_bit, float* s, int begin, int end, float hidden) {
  for (int j = begin; j < end; j++) {
    const int64_t bit = first_bit + j;
    s[j] = (words[bit >> 5] >> (bit & 31)) & 1u ? s[j] : hidden;
  }
}

// Turns the scaled products s[lo, hi) of row i into logits (or weights) and hides the keys that it does not see.
template <class V, class Places, class Rows>
ATTNLOOM_FN void score_row(const RunArgs& args, const typename V::Params& params, const Item& item,
                           const Places& at, const Rows& rows, int i, float* s, int lo, int hi) {
  const LevelView& level = args.index.levels[item.level];
  const uint32_t* words = nullptr;
  int64_t first_bit = 0;
  if (level.mask_bits && level.mask_begin[item.level_row] >= 0) {
    words = level.mask_bits + level.mask_begin[item.level_row];
    first_bit = int64_t{rows.place[i]} * item.row_kv_len + at.begin;
  }
  int done = lo;
  for (int slot = 0; slot < Rows::slots; slot++) {
    const Range seen = rows.clipped(slot, i, at.begin, at.begin + at.count);
    const int begin = seen.lo - at.begin, end = seen.hi - at.begin;
    if (begin >= end) continue;
    fill(s, done, begin, kHidden<V>);
    done = end;
    if constexpr (V::linear_in_distance) {
      const Line line = V::line(params, rows.site[i]);
      const int q_pos = rows.site[i].q_pos;
      ATTNLOOM_LOOP
      for (int j = begin; j < end; j++) s[j] += line.offset + line.slope * static_cast<float>(at.pos[j] - q_pos);
    } else if constexpr (V::has_logits_transform || V::has_logits_mask) {
      const Site row = rows.site[i];
      const int first_index = item.kv_start + at.begin;
      ATTNLOOM_LOOP
      for (int j = begin; j < end; j++) {
        Site site = row;
        site.kv_index = first_index + j;
        site.kv_pos = at.pos[j];
        site.distance = {static_cast<float>(site.kv_pos - site.q_pos), 0.0f};
        const float x = V::logits_transform(params, s[j], site);
        s[j] = V::logits_mask(params, site) ? x : kHidden<V>;
      }
    }
    if constexpr (V::has_kv_range)
      if (rows.by_position)
        for (int j = begin; j < end; j++) s[j] = rows.visible[i].contains(at.pos[j]) ? s[j] : kHidden<V>;
    if (words) apply_mask_bits(words, first_bit, s, begin, end, kHidden<V>);
  }
  fill(s, done, hi, kHidden<V>);
}

ATTNLOOM_FN void store_weights(float* weights, int j, Vec x) { store(weights + j, x); }
#if defined(__AVX512BF16__)
ATTNLOOM_FN void store_weights(uint32_t* weights, int j, Vec x) {
  const __m256bh narrow = _mm512_cvtneps_pbh(bits_as<__m512>(x));
  __builtin_memcpy(reinterpret_cast<uint16_t*>(weights) + j, &narrow, sizeof narrow);
}
#endif

// One step of the online softmax: weights of the logits s[lo, hi) (whole vectors), the row's new state, and in the
// result what its O~ must be multiplied by.
template <class Lane>
ATTNLOOM_FN float softmax_step(const float* s, int lo, int hi, State& state, Lane* weights) {
  Vec top = splat(-inf);
  for (int j = lo; j < hi; j += kLanes) top = larger(load(s + j), top);
  const float m = attnloom::max(lanes_max(top), state.m);
  const float from = pivot(m);
  Vec sum = {};
  for (int j = lo; j < hi; j += kLanes) {
    const Vec weight = exp_nonpositive(load(s + j) - from);
    sum += weight;
    store_weights(weights, j, weight);
  }
  const float alpha = rescale(state.m, m);
  state = {m, state.d * alpha + lanes_sum(sum)};
  return alpha;
}

}  // namespace attnloom::host
