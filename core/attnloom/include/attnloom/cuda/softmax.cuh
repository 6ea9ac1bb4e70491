// From products to weights, in registers: a warp's rows against some keys.
#pragma once
#include "../state.h"
#include "transform.cuh"

namespace attnloom::cuda {

constexpr float kLog2E = 1.4426950408889634f;
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

// How products become logits: logit = unit * score, weight = 2^(step * (score - m)).
template <class V>
struct Units {
  float scale;  // of a product
  float unit, step;
  bool scaled;  // scores are logits

  Units() = default;
  ATTNLOOM_DEVICE explicit Units(float sm_scale) {
    scale = sm_scale;
    scaled = V::has_logits_transform || !V::use_softmax || !(sm_scale > 0.0f);
    unit = scaled ? 1.0f : sm_scale;
    step = unit * kLog2E;
  }
};

// What is found out about a unit of work once, for all its threads; aligned, so that no wide load of its neighbours reads
// it while it is written.
template <class V>
struct alignas(16) Facts {
  Units<V> units;
  bool listed, masked, by_position;
};

// What scoring needs of a unit of work besides its rows.
template <class V>
struct Pairs {
  const typename V::Params& params;
  const Item& item;
  const Positions& positions;
  const int& kv_head;
  const bool& masked;       // by bits
  const bool& by_position;  // ranges are tested on positions: key ordinals do not tell

  // The block row's packed mask, where there is one.
  ATTNLOOM_DEVICE const uint32_t* mask() const {
    const LevelView& level = positions.index.levels[item.level];
    return level.mask_bits + level.mask_begin[item.level_row];
  }
};

// The bits of a word from `begin` on, of which it may have none.
ATTNLOOM_DEVICE uint32_t bits_from(int begin) { return __funnelshift_lc(0u, ~0u, static_cast<uint32_t>(max(begin, 0))); }

// Bits [begin, end) of a word.
ATTNLOOM_DEVICE uint32_t bits_between(int begin, int end) { return bits_from(begin) & ~bits_from(end); }

// Which of 32 keys a row sees, a bit each. A lane's own are the first two of every eight: of others nothing is said.
template <class V, class R>
struct SeenKeys {
  const Pairs<V>& pairs;
  const R& rows;

  // By key ordinals.
  ATTNLOOM_DEVICE uint32_t in_range(int r, int first_key) const {
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < R::slots; n++) bits |= bits_between(rows.lo[n][r] - first_key, rows.hi[n][r] - first_key);
    return bits;
  }
  // By positions, which stand at `noted`, of the first 8 `eights` keys.
  ATTNLOOM_DEVICE uint32_t at_positions(int r, int first_key, const int* noted, int eights) const {
    uint32_t bits = 0;
#pragma unroll 1
    for (int t = 0; t < eights; t++)
#pragma unroll
      for (int j = 8 * t; j < 8 * t + 2; j++) {
        bool seen = false;
#pragma unroll
        for (int n = 0; n < R::slots; n++) seen |= rows.lo[n][r] <= noted[j] && noted[j] < rows.hi[n][r];
        bits |= static_cast<uint32_t>(seen) << j;
      }
    return bits & bits_between(pairs.item.kv_begin - first_key, pairs.item.kv_end - first_key);
  }
  // By the block row's packed mask.
  ATTNLOOM_DEVICE uint32_t in_mask(int r, int first_key) const {
    const uint32_t* mask = pairs.mask();
    const int64_t row = static_cast<int64_t>(rows.place[r]) * pairs.item.row_kv_len;
    const int64_t bit = row + first_key, last = (row + pairs.item.kv_end - 1) >> 5;
    const int64_t word = bit >> 5;
    const uint32_t low = word <= last ? mask[word] : 0u, high = word < last ? mask[word + 1] : 0u;
    return __funnelshift_r(low, high, static_cast<uint32_t>(bit) & 31u);
  }
};

// Logits as functors make them, of rows whose sites are `rows`. `Plain`: the keys stand one after the other and all lie in the
// item.
template <bool Plain, class V, int M, int N>
ATTNLOOM_DEVICE void transform_logits(float (&s)[M][N][4], const Pairs<V>& pairs, const Site (&rows)[M][2], const Units<V>& units,
                                      int first_key, const int* noted) {
  constexpr float hidden = V::use_softmax ? -inf : 0.0f;
  constexpr int at_once = V::takes_logits && V::logits_by_key && N > 4 ? 8 : 2 * N;  // as registers allow
  const int c = here(lane_id()) % 4;
  const int last = pairs.positions.last(), kv_start = pairs.item.kv_start;
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float first_distance = static_cast<float>(kv_start + first_key + 2 * c - rows[i][h].q_pos);
#pragma unroll
      for (int first = 0; first < 2 * N; first += at_once) {
        const auto site_of = [&](int n) {
          Site site = rows[i][h];
          const int onward = (first + n) / 2 * 8 + n % 2, j = 2 * c + onward;
          site.kv_index = kv_start + (Plain ? first_key + j : min(first_key + j, last));
          site.kv_pos = !Plain && pairs.positions.listed ? noted[j] : site.kv_index;
          if (Plain) site.distance = {first_distance, static_cast<float>(onward)};
          else site.distance = {static_cast<float>(site.kv_pos - site.q_pos), 0.0f};
          return site;
        };
        const auto at = [&](int n) -> float& { return s[i][(first + n) / 2][2 * h + n % 2]; };
        Logits<at_once> logits{.factor = V::has_logits_transform ? units.scale : 1.0f};
#pragma unroll
        for (int n = 0; n < at_once; n++) logits.at[n] = at(n);
        logits = V::logits_transform(pairs.params, logits, site_of);
#pragma unroll
        for (int n = 0; n < at_once; n++) {
          float x = logits.at[n] * logits.factor;
          if (!Plain) x = here(x);  // or both ways would share their last sums, away from the products before them
          at(n) = V::logits_mask(pairs.params, site_of(n)) ? x : hidden;
        }
      }
    }
}

// Hides the keys that a row does not see: -inf, or 0 as weights.
template <class V, int M, int N, class R>
ATTNLOOM_DEVICE void hide(float (&s)[M][N][4], const Pairs<V>& pairs, const R& rows, int first_row, int first_key,
                          const int* noted) {
  constexpr float hidden = V::use_softmax ? -inf : 0.0f;
  constexpr int words = (N + 3) / 4;
  const int lane = here(lane_id()), g = lane / 4, c = lane % 4;
  const SeenKeys<V, R> keys{pairs, rows};
  uint32_t seen[M][2][words];  // from this lane's first key on
  const auto each_word = [&](auto f) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int w = 0; w < words; w++) f(seen[i][h][w], first_row + 16 * i + 8 * h + g, 32 * w + 2 * c, min(4, N - 4 * w));
  };
  if (V::has_kv_range && pairs.by_position)
    each_word([&](uint32_t& bits, int r, int j, int eights) { bits = keys.at_positions(r, first_key + j, noted + j, eights); });
  else
    each_word([&](uint32_t& bits, int r, int j, int) { bits = keys.in_range(r, first_key + j); });
  if (pairs.masked) each_word([&](uint32_t& bits, int r, int j, int) { bits &= keys.in_mask(r, first_key + j); });
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int t = 0; t < N; t++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        s[i][t][e] = seen[i][e / 2][t / 4] >> (8 * (t % 4) + e % 2) & 1u ? s[i][t][e] : hidden;
}

// s: products of rows [first_row, ...) with keys from `first_key` on, in fragments, become scores.
// `whole`: every row sees all these keys. `noted`: where the keys' positions stand if they are listed.
template <class S, class V, int M, int N, class R>
ATTNLOOM_DEVICE void score(float (&s)[M][N][4], const Pairs<V>& pairs, const R& rows, const Units<V>& units, int first_row,
                           int first_key, const int* noted, bool whole) {
  if (!V::has_logits_transform && units.scaled) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int t = 0; t < N; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][t][e] *= units.scale;
  }
  if constexpr (V::has_logits_transform || V::has_logits_mask) {
    Site sites[M][2];
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) sites[i][h] = rows.site(first_row + 16 * i + 8 * h + lane_id() / 4, pairs.kv_head);
    const bool listed = pairs.positions.listed, inside = first_key + 8 * N <= pairs.item.kv_end;
    if (!V::logits_by_key || (!listed & inside)) transform_logits<true>(s, pairs, sites, units, first_key, noted);
    else transform_logits<false>(s, pairs, sites, units, first_key, noted);
  }
  if (!whole) hide<V>(s, pairs, rows, first_row, first_key, noted);
}

// Weights as the left operand of their product with V.
template <int M, int N>
using Weights = uint32_t[M][N / 2][4];

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

// Lets m and d follow the scores: a row's m moves once a weight exceeds 2^kMost. Its largest weight is 2^kUsual then, so
// that float16 keeps weights down to 2^-31 of that of m.
template <class S, class V, int M, int N>
ATTNLOOM_DEVICE Rescale<M> follow(const float (&s)[M][N][4], State16<S, V, M>& state, float step) {
  constexpr float kUsual = 7.0f, kMost = 15.0f;
  float top[M][2];
  bool ahead = false;
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      top[i][h] = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
      for (int t = 1; t < N; t++) top[i][h] = fmaxf(top[i][h], fmaxf(s[i][t][2 * h], s[i][t][2 * h + 1]));
      ahead |= (top[i][h] - state.m[i][h]) * step > kMost;
    }
  Rescale<M> rescale;
  rescale.any = __any_sync(~0u, ahead);
  if (rescale.any) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float m = quad_max(top[i][h]), before = state.m[i][h];
        if ((m - before) * step > kMost) state.m[i][h] = m - kUsual / step;
        rescale.alpha[i][h] = exp2((before - state.m[i][h]) * step);
        state.d[i][h] *= rescale.alpha[i][h];
      }
  }
  return rescale;
}

// Scores become weights of T, and d grows by them.
template <class S, class V, DType T = S::T, int M, int N>
ATTNLOOM_DEVICE void take_weights(const float (&s)[M][N][4], Weights<M, N>& p, State16<S, V, M>& state, float step) {
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float from = state.m[i][h] * step;
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < N; t++) {
        float a = s[i][t][2 * h], b = s[i][t][2 * h + 1];
        if constexpr (V::use_softmax) {
          a = exp2(fmaf(a, step, -from));
          b = exp2(fmaf(b, step, -from));
          sum += a + b;
        }
        p[i][t / 2][t % 2 * 2 + h] = pack<T>(a, b);
      }
      state.d[i][h] += sum;
    }
}

// One step of the online softmax: scores become weights of T.
template <class S, class V, DType T = S::T, int M, int N>
ATTNLOOM_DEVICE void weigh(float (&s)[M][N][4], Weights<M, N>& p, State16<S, V, M>& state, float step) {
  if constexpr (V::use_softmax) follow<S, V>(s, state, step).apply(state.o);
  take_weights<S, V, T>(s, p, state, step);
}

}  // namespace attnloom::cuda
