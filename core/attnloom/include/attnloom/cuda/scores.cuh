// From products to scores, in registers: what functors make of a warp's rows against some keys, and which of these they see.
#pragma once
#include "transform.cuh"

namespace attnloom::cuda {

constexpr float kLog2E = 1.4426950408889634f;

// The score of a key that a row does not see, or its weight.
template <class V>
constexpr float hidden = V::use_softmax ? -inf : 0.0f;

// How products become logits: those of a unit of work, before any transform.
template <class V>
struct Units {
  float scale;       // of a product
  float unit, step;  // of a row's m: logit = unit * m, weight = 2^(step * (score - m)) without a transform
  bool scaled;       // products are multiplied first, so that scores grow as logits do

  Units() = default;
  ATTNLOOM_DEVICE explicit Units(float sm_scale) {
    scale = sm_scale;
    scaled = V::has_logits_transform ? !(sm_scale > 1e-12f) : !V::use_softmax || !(sm_scale > 0.0f);
    unit = V::has_logits_transform || scaled ? 1.0f : sm_scale;
    step = unit * kLog2E;
  }
  // What scores are multiplied by to be logits that a transform takes.
  ATTNLOOM_DEVICE float factor() const { return scaled ? 1.0f : scale; }
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

// How scores of keys are read, in the units of m: which logit is which, and which power of two its weight.
template <class V, int M>
struct PlainReading {
  ATTNLOOM_DEVICE float logit(int, int, float score, int) const { return score; }
  // Not less than the logits of scores up to `score`, of so many keys.
  ATTNLOOM_DEVICE float bound(int, int, float score, int) const { return score; }
  ATTNLOOM_DEVICE auto power(int, int, float m, float step) const {
    const float from = m * step;
    return [=](float score, int) { return fmaf(score, step, -from); };
  }
};

// logit = factor * score + offset + slope * onward, of a row and of a key that is `onward` keys after the lane's first.
template <class V, int M>
struct LineReading {
  float factor = 1.0f, offset[M][2] = {}, slope[M][2] = {};

  ATTNLOOM_DEVICE float logit(int i, int h, float score, int onward) const {
    return fmaf(score, factor, fmaf(slope[i][h], static_cast<float>(onward), offset[i][h]));
  }
  ATTNLOOM_DEVICE float bound(int i, int h, float score, int keys) const {
    return fmaxf(logit(i, h, score, 0), logit(i, h, score, keys - 1));
  }
  ATTNLOOM_DEVICE auto power(int i, int h, float m, float step) const {
    const float each = step * factor, further = step * slope[i][h], from = (m - offset[i][h]) * step;
    return [=](float score, int onward) { return fmaf(score, each, fmaf(further, static_cast<float>(onward), -from)); };
  }
};

// What becomes of products of a row in the power of two of their weights, before m: x (c1 + c3 x^2 + c5 x^4 + c7 x^6) where
// x^2 <= most, for which two terms do where x^2 <= near_most.
struct alignas(16) RowCurve {
  // Of a logit by two terms, and half as much again by those left out: less than rounding a weight to 16 bits makes of it.
  static constexpr float kError = 1e-4f;

  float near_c1, near_c3, near_most, most;
  float c1, c3, c5, c7;

  RowCurve() = default;
  template <class V, class R>
  ATTNLOOM_DEVICE RowCurve(const Pairs<V>& pairs, const R& rows, const Units<V>& units, int r) {
    const float scale = units.scale, square = scale * scale;
    Curve curve = V::curve(pairs.params, rows.site(r, pairs.kv_head));
    // Powers of small numbers would be lost: near 0 a curve is straight, to 4e-7.
    if (fabsf(curve.c3) * square < 1e-11f) curve = {0.0f, 0.0f, 0.0f, 0.002f * curve.limit};
    c1 = scale * kLog2E, c3 = c1 * square * curve.c3, c5 = c1 * square * square * curve.c5;
    c7 = c1 * square * square * square * curve.c7;
    most = units.scaled || !(curve.limit >= 0.0f && fabsf(c7) < inf) ? -1.0f : square_of(curve.limit / scale);
    // Where |x| <= l, the best cubic in place of x^5 is 5/4 l^2 x^3 - 5/16 l^4 x, and l^5 / 16 away from it.
    const float l = fminf(curve.limit, exp2(0.2f * log2f(16.0f * kError / fabsf(curve.c5))));
    const float bend = curve.c5 == 0.0f ? 0.0f : curve.c5 * l * l;
    near_c1 = c1 * (bend == 0.0f ? 1.0f : 1.0f - 0.3125f * bend * l * l), near_c3 = c1 * square * (curve.c3 + 1.25f * bend);
    near_most = most < 0.0f ? -1.0f : square_of(l / scale);
  }

  // By what x is multiplied, u being x^2.
  ATTNLOOM_DEVICE float slope(float u) const { return ((c7 * u + c5) * u + c3) * u + c1; }
  ATTNLOOM_DEVICE float near_slope(float u) const { return near_c3 * u + near_c1; }

 private:
  // Below the squares of numbers whose square is infinite.
  static ATTNLOOM_DEVICE float square_of(float x) { return fminf(x * x, 1e38f); }
};

// Products whose logits are curves of them, up to a limit; and scores that are logits, as transforms made them one by one.
template <class V, int M>
struct CurveReading : PlainReading<V, M> {
  bool found = false;
  RowCurve of[M][2];

  template <class R>
  ATTNLOOM_DEVICE void find(const Pairs<V>& pairs, const R& rows, const Units<V>& units, int first_row) {
    found = true;
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) of[i][h] = {pairs, rows, units, first_row + 16 * i + 8 * h + lane_id() / 4};
  }

  // Those that stand there, 8 rows apart.
  ATTNLOOM_DEVICE void take(const RowCurve* curves) {
    static_assert(M == 1);
    found = true, of[0][0] = curves[0], of[0][1] = curves[8];
  }

  // Whether a product of this magnitude is on its curve.
  ATTNLOOM_DEVICE bool holds(int i, int h, float magnitude) const { return magnitude * magnitude <= of[i][h].most; }
  // The power of two of the weight of a product on its curve, m being `m`.
  ATTNLOOM_DEVICE auto power_on_curve(int i, int h, float m) const {
    const RowCurve curve = of[i][h];
    return [=, from = m * kLog2E](float x, int) { return x * curve.slope(x * x) - from; };
  }
};

// Products on their curves.
template <class V, int M>
struct OnCurves {
  const CurveReading<V, M>& curves;

  ATTNLOOM_DEVICE float logit(int i, int h, float score, int) const { return curves.power_on_curve(i, h, 0.0f)(score, 0) / kLog2E; }
  ATTNLOOM_DEVICE float bound(int i, int h, float score, int) const { return logit(i, h, score, 0); }
};

template <class V, int M>
using Reading = std::conditional_t<V::linear_in_distance, LineReading<V, M>,
                                   std::conditional_t<V::may_curve, CurveReading<V, M>, PlainReading<V, M>>>;

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

// Scores as functors make them, of rows whose sites are `rows`. `Plain`: the keys stand one after the other and, if a functor asks
// for them, all lie in the item.
template <bool Plain, class V, int M, int N>
ATTNLOOM_DEVICE void transform_logits(float (&s)[M][N][4], const Pairs<V>& pairs, const Site (&rows)[M][2], const Units<V>& units,
                                      int first_key, const int* noted) {
  const int c = here(lane_id()) % 4;
  const int last = pairs.positions.last(), kv_start = pairs.item.kv_start;
  const float factor = V::has_logits_transform ? units.factor() : 1.0f;
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float first_distance = static_cast<float>(kv_start + first_key + 2 * c - rows[i][h].q_pos);
#pragma unroll
      for (int t = 0; t < N; t++)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) {
          Site site = rows[i][h];
          const int onward = 8 * t + e % 2, j = 2 * c + onward;
          site.kv_index = kv_start + (Plain ? first_key + j : min(first_key + j, last));
          site.kv_pos = !Plain && pairs.positions.listed ? noted[j] : site.kv_index;
          if (Plain) site.distance = {first_distance, static_cast<float>(onward)};
          else site.distance = {static_cast<float>(site.kv_pos - site.q_pos), 0.0f};
          float x = V::logits_transform(pairs.params, s[i][t][e] * factor, site);
          if (!Plain) x = here(x);  // or both ways would share their last sums, away from the products before them
          s[i][t][e] = V::logits_mask(pairs.params, site) ? x : hidden<V>;
        }
    }
}

// How scores of rows [first_row, ...) with keys from `first_key` on are read if the keys follow each other, as far as that is
// found before the products have come in.
template <class V, int M, class R>
ATTNLOOM_DEVICE Reading<V, M> read(const Pairs<V>& pairs, const R& rows, const Units<V>& units, int first_row, int first_key) {
  Reading<V, M> reading;
  if constexpr (V::linear_in_distance) {
    const int lane = here(lane_id()), first_index = pairs.item.kv_start + first_key + 2 * (lane % 4);
    reading.factor = units.factor();
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int r = first_row + 16 * i + 8 * h + lane / 4;
        const Line line = rows.line[r];
        reading.slope[i][h] = line.slope;
        reading.offset[i][h] = line.offset + line.slope * static_cast<float>(first_index - rows.q_pos[r]);
      }
  }
  return reading;
}

// Hides the keys that a row does not see.
template <class V, int M, int N, class R>
ATTNLOOM_DEVICE void hide(float (&s)[M][N][4], const Pairs<V>& pairs, const R& rows, int first_row, int first_key,
                          const int* noted) {
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
        s[i][t][e] = here(seen[i][e / 2][t / 4] >> (8 * (t % 4) + e % 2) & 1u ? s[i][t][e] : hidden<V>);
}

// s: products of rows [first_row, ...) with keys from `first_key` on, in fragments, become scores, to be read by `reading`.
// `on_curve`: the products are on the rows' curves.
// `whole`: every row sees all these keys. `noted`: where the keys' positions stand if they are listed.
template <class S, class V, int M, int N, class R>
ATTNLOOM_DEVICE void score(float (&s)[M][N][4], Reading<V, M>& reading, const Pairs<V>& pairs, const R& rows,
                           const Units<V>& units, int first_row, int first_key, const int* noted, bool whole, bool on_curve) {
  if (units.scaled) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int t = 0; t < N; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][t][e] *= units.scale;
  }
  if constexpr (V::has_logits_transform || V::has_logits_mask) {
    const bool inside = first_key + 8 * N <= pairs.item.kv_end;
    const bool following = V::may_curve || (!pairs.positions.listed & (!V::logits_by_key | inside));
    if (V::may_curve && on_curve) {
      if constexpr (V::may_curve) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
          for (int t = 0; t < N; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][t][e] = OnCurves<V, M>{reading}.logit(i, e / 2, s[i][t][e], 0);
      }
    } else if (V::linear_in_distance && following) {
      if constexpr (!V::use_softmax) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
          for (int t = 0; t < N; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][t][e] = reading.logit(i, e / 2, s[i][t][e], 8 * t + e % 2);
      }
    } else {
      Site sites[M][2];
#pragma unroll
      for (int i = 0; i < M; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) sites[i][h] = rows.site(first_row + 16 * i + 8 * h + lane_id() / 4, pairs.kv_head);
      if (!V::linear_in_distance && following) transform_logits<true>(s, pairs, sites, units, first_key, noted);
      else transform_logits<false>(s, pairs, sites, units, first_key, noted);
      if constexpr (V::linear_in_distance) reading = {};
    }
  }
  if (!whole) hide<V>(s, pairs, rows, first_row, first_key, noted);
}

}  // namespace attnloom::cuda
