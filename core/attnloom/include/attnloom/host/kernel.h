// The host kernel: runs a plan's queues, then its merge list.
#pragma once
#include "finalize.h"
#include "ranges.h"
#include "softmax.h"

namespace attnloom::host {

// What one thread needs to run items; a few hundred KiB.
template <class S, class V>
class Worker {
 public:
  // `next` is the item after it, or null.
  void run(const RunArgs& args, const typename V::Params& params, const Item& item, const Item* next) {
    const int total = item.q_tokens * (args.num_qo_heads / args.num_kv_heads);
    const int most = S::whole_blocks(S::t_q[item.tile_class]);
    for (int first = 0; first < total; first += most) {
      const int rows = min(most, total - first), padded = S::whole_blocks(rows);
      const int heads = S::max_rows / padded;
      for (int h = 0; h < item.heads; h += heads) {
        rows_.describe(args, params, item, first, rows, padded, item.head0 + h, min(heads, item.heads - h));
        load_queries(args, params);
        const bool last = first + rows == total && h + rows_.heads == item.heads;
        attend(args, params, item, item.head0 + h, last ? next : nullptr);
        for (int i = 0; i < rows_.heads; i++) {
          const int64_t part = int64_t{item.part_row} + int64_t{h + i} * total + first;
          if (item.part_row >= 0) write_partials(args, i * padded, part);
          else write_rows(args, params, i * padded);
        }
      }
    }
  }

 private:
  using Arith = typename S::Arith;
  using Lane = typename S::Lane;
  static constexpr int R = S::rows_at_once;

  void load_queries(const RunArgs& args, const typename V::Params& params) {
    for (int i = 0; i < rows_.heads * rows_.stride; i++) {
      alignas(64) float row[S::d_floats] = {};
      if (i % rows_.stride < rows_.count) {
        const int64_t at = rows_.token[i] * args.q.stride_token + rows_.site[i].qo_head * args.q.stride_head;
        load_row<S::q, S::head_dim>(static_cast<const Stored<S::q>*>(args.q.data) + at, row);
        if constexpr (V::has_query_transform) {
          Row<HostMap<S::head_dim>> view{row};
          V::query_transform(params, view, rows_.site[i]);
        }
      }
      pack_row<Arith>(row, S::d_floats, q_ + i * S::d_padded);
      state_[i] = {};
      for (int c = 0; c < S::v_columns; c++) o_[i * S::v_columns + c] = 0.0f;
    }
  }

  // Walks the tiles of t_kv keys that the rows see, each under all heads so that pages are read whole. Tiles start at
  // ordinals that do not depend on the item. The first keys of `next` (an item, or null) are asked for at the end.
  void attend(const RunArgs& args, const typename V::Params& params, const Item& item, int head, const Item* next) {
    const int t_kv = S::t_kv[item.tile_class];
    Range all{item.kv_end, item.kv_begin};
    for (int h = 0; h < rows_.heads; h++) {
      const Range one = rows_.hull(h * rows_.stride, rows_.count, item.kv_begin, item.kv_end);
      all = {min(all.lo, one.lo), max(all.hi, one.hi)};
    }
    int tile = all.lo / t_kv * t_kv, h = 0;
    const auto locate_next = [&](Places<S>& places) {
      places.padded = 0;
      while (tile < all.hi && places.padded == 0) {
        locate(args, item, head, h, max(tile, all.lo), min(tile + t_kv, all.hi), places);
        if (++h == rows_.heads) h = 0, tile += t_kv;
      }
      return places.padded > 0;
    };
    bool more = locate_next(places_[0]);
    for (int turn = 0; more; turn ^= 1) {
      at_ = &places_[turn];
      Places<S>& ahead = places_[turn ^ 1];
      more = locate_next(ahead);
      if (!more && next) expect(args, *next, ahead);
      attend_tile(args, params, item, head + at_->head, ahead);
    }
  }

  // Finds the keys that an item will most likely begin with.
  void expect(const RunArgs& args, const Item& item, Places<S>& places) {
    const int end = min(item.kv_end, item.kv_begin + S::t_kv[item.tile_class]);
    if (item.kv_begin >= end) return;
    places.reset(0, item.kv_begin, end);
    places.locate(args, item, item.head0, item.kv_begin, end);
  }

  // Finds the keys of [begin, end) that rows of the h-th head see, none of them for `padded` 0.
  void locate(const RunArgs& args, const Item& item, int head, int h, int begin, int end, Places<S>& places) {
    const int first = h * rows_.stride;
    const Range all = rows_.hull(first, rows_.count, begin, end);
    if (all.lo >= all.hi) return;
    places.reset(h, all.lo, all.hi);
    for (int s = 0; s < V::max_ranges; s++) {
      const Range seen = rows_.hull(s, first, rows_.count, begin, end);
      if (seen.lo < seen.hi) places.locate(args, item, head + h, seen.lo, seen.hi);
    }
  }

  // The tile at hand; `ahead` is the one after it.
  void attend_tile(const RunArgs& args, const typename V::Params& params, const Item& item, int head,
                   const Places<S>& ahead) {
    const float k_scale = head_scale(args.k_scale, head);
    const float v_scale = head_scale(args.v_scale, head);
    const float scale = V::has_key_transform ? args.sm_scale : args.sm_scale * k_scale;
    const bool single = item.request >= 0;
    const Site site{item.request, -1, head, -1, -1, 0, -1, single ? rows_.site[0].qo_len : 0,
                    single ? rows_.site[0].kv_len : item.kv_start + item.row_kv_len};
    const typename Keys<S, V>::Source source{params, site, item.kv_start, k_scale, v_scale};
    if (rows_.count <= Keys<S, V>::rows_in_place) return attend_few(args, item, source, ahead, scale);
    keys_.pack_keys(source, *at_, ahead);
    keys_.pack_values(source, *at_, ahead);
    const int first = at_->head * rows_.stride, stop = first + rows_.count;
    for (int i = first; i < stop;) {
      const int rows = S::block(stop - i);
      if (rows == R) attend_rows<R>(args, params, item, i, stop, scale);
      else attend_rows<kFewRows>(args, params, item, i, stop, scale);
      i += rows;
    }
  }

  // Rows [first, first + N) against the packed tile; those from `stop` on do not exist.
  template <int N>
  void attend_rows(const RunArgs& args, const typename V::Params& params, const Item& item, int first, int stop,
                   float scale) {
    const Range seen = rows_.hull(first, min(N, stop - first), at_->begin, at_->begin + at_->count);
    if (seen.lo >= seen.hi) return;
    const int lo = (seen.lo - at_->begin) / kLanes * kLanes, hi = round_up(seen.hi - at_->begin, kLanes);

    for (int p = lo / S::panel; p * S::panel < hi; p++)
      multiply<Arith, N, kTileVectors, Into::scaled>(S::d_lanes, q_ + first * S::d_padded, S::d_padded, keys_.panel(p),
                                                     0, s_ + p * S::panel, S::max_keys, &scale);
    float alpha[N];
    for (int r = 0; r < N; r++) {
      const bool exists = first + r < stop;
      alpha[r] = weigh(args, params, item, first + r, exists, s_ + r * S::max_keys, lo, hi, weights(r));
    }
    add_values<N>(first, lo, hi, alpha);
  }

  // The rows under one head, at most Keys::rows_in_place, against the tile where it lies; in blocks of nearly one size.
  void attend_few(const RunArgs& args, const Item& item, const typename Keys<S, V>::Source& source,
                  const Places<S>& ahead, float scale) {
    static_assert(kFewRows == 4);
    int first = at_->head * rows_.stride;
    const Places<S>* asked = &ahead;
    for (int blocks = (rows_.count + kFewRows - 1) / kFewRows, left = rows_.count; blocks > 0; blocks--) {
      const int rows = (left + blocks - 1) / blocks;
      if (rows == 1) attend_few<1>(args, item, source, *asked, scale, first);
      else if (rows == 2) attend_few<2>(args, item, source, *asked, scale, first);
      else if (rows == 3) attend_few<3>(args, item, source, *asked, scale, first);
      else attend_few<4>(args, item, source, *asked, scale, first);
      first += rows;
      left -= rows;
      asked = &nowhere_;
    }
  }

  template <int N>
  void attend_few(const RunArgs& args, const Item& item, const typename Keys<S, V>::Source& source,
                  const Places<S>& ahead, float scale, int first) {
    ahead.prefetch_keys(at_->padded, ahead.padded);
    for (int j = 0; j < at_->padded; j += kLanes)
      keys_.template multiply_few<N>(source, *at_, ahead, j, q_ + first * S::d_padded, s_, scale);
    float alpha[N];
    for (int r = 0; r < N; r++)
      alpha[r] = weigh(args, source.params, item, first + r, true, s_ + r * S::max_keys, 0, at_->padded, weights(r));
    if constexpr (Keys<S, V>::values_direct) {
      add_values_in_place<N>(source, ahead, first, alpha);
    } else {
      keys_.pack_values(source, *at_, ahead);
      add_values<N>(first, 0, at_->padded, alpha);
    }
  }

  // O~ = alpha O~ + P V, over the packed values of keys [lo, hi).
  template <int N>
  ATTNLOOM_FN void add_values(int first, int lo, int hi, const float* alpha) {
    if (!keys_.finite) return add_values_apart<N>(first, lo, hi, alpha);
    multiply_wide<Arith, N, S::v_vectors>((hi - lo) / S::step, weights(0) + lo / S::step, S::max_keys / S::step,
                                          keys_.values(lo), o_ + first * S::v_columns, alpha);
  }

  // The same over the values where they lie. Not finite sums are done again, with care.
  template <int N>
  void add_values_in_place(const typename Keys<S, V>::Source& source, const Places<S>& ahead, int first,
                           const float* alpha) {
    float* o = o_ + first * S::v_columns;
    alignas(64) float before[N * S::v_columns];
    __builtin_memcpy(before, o, sizeof before);
    multiply_wide<Arith, N, S::v_vectors>(at_->padded / S::step, weights(0), S::max_keys / S::step,
                                          typename Keys<S, V>::InPlace{*at_, ahead}, o, alpha);
    Vec check = {};
    for (int c = 0; c < N * S::v_columns; c += kLanes) check += load(o + c) * 0.0f;
    if (lanes_sum(check) == 0.0f) return;
    __builtin_memcpy(o, before, sizeof before);
    keys_.pack_values(source, *at_, *at_);
    add_values_apart<N>(first, 0, at_->padded, alpha);
  }

  // Weights of row i over keys [lo, hi) of the tile; returns what its O~ must be multiplied by. Compiled once, for any
  // number of rows.
  __attribute__((noinline)) float weigh(const RunArgs& args, const typename V::Params& params, const Item& item, int i,
                                        bool exists, float* s, int lo, int hi, Lane* weights) {
    if (exists) score_row<V>(args, params, item, *at_, rows_, i, s, lo, hi);
    else fill(s, lo, hi, kHidden<V>);
    if constexpr (V::use_softmax) return softmax_step(s, lo, hi, state_[i], weights);
    for (int j = lo; j < hi; j += kLanes) store_weights(weights, j, load(s + j));
    return 1.0f;
  }

  // O~ = alpha O~ + P V where V holds an infinity or a NaN: a key of weight 0 must not reach the row.
  template <int N>
  void add_values_apart(int first, int lo, int hi, const float* alpha) {
    for (int r = 0; r < N; r++) {
      float* o = o_ + (first + r) * S::v_columns;
      for (int c = 0; c < S::v_columns; c++) o[c] *= alpha[r];
      for (int j = lo; j < hi; j++) {
        const float weight = weight_at(r, j);
        if (weight == 0.0f) continue;
        for (int c = 0; c < S::v_columns; c++) o[c] += weight * keys_.value_at(j, c);
      }
    }
  }

  ATTNLOOM_FN float weight_at(int r, int j) {
    if constexpr (S::step == 1) return weights(r)[j];
    else return bits_as<float>(j % 2 ? weights(r)[j / 2] & 0xffff0000u : weights(r)[j / 2] << 16);
  }

  // Float32 weights take the place of the scores.
  ATTNLOOM_FN Lane* weights(int r) {
    if constexpr (S::step == 1) return s_ + r * S::max_keys;
    else return p_ + r * (S::max_keys / S::step);
  }

  void write_partials(const RunArgs& args, int first, int64_t part) {
    for (int i = first; i < first + rows_.count; i++, part++) {
      float* o = args.partial_o + part * S::head_dim_v;
      for (int c = 0; c < S::head_dim_v; c++) o[c] = o_[i * S::v_columns + c];
      args.partial_md[2 * part] = state_[i].m;
      args.partial_md[2 * part + 1] = state_[i].d;
    }
  }

  void write_rows(const RunArgs& args, const typename V::Params& params, int first) {
    for (int i = first; i < first + rows_.count; i++)
      finalize<S, V>(args, params, state_[i], o_ + i * S::v_columns, rows_.token[i], rows_.site[i]);
  }

  Rows<V, S::max_rows> rows_;
  Places<S> places_[2];  // of the tile at hand and of the next
  const Places<S>* at_;
  Places<S> nowhere_{};
  Keys<S, V> keys_;
  State state_[S::max_rows];
  alignas(64) Lane q_[S::max_rows * S::d_padded];
  alignas(64) float o_[S::max_rows * S::v_columns];
  alignas(64) float s_[R * S::max_keys];
  alignas(64) Lane p_[S::step == 1 ? 1 : R * S::max_keys / S::step];
};

template <class S, class V>
void run_queue(const RunArgs& args, const PlanHeader& plan, int worker) {
  static thread_local Worker<S, V> state;
  const auto* base = reinterpret_cast<const char*>(&plan);
  const auto& params = *static_cast<const typename V::Params*>(args.params);
  const Item* items = reinterpret_cast<const Item*>(base + plan.items);
  const WorkerQueue& queue = reinterpret_cast<const WorkerQueue*>(base + plan.workers)[worker];
  const Item *item = items + queue.next, *end = items + queue.end;
  if (queue.first.q_tokens > 0) state.run(args, params, queue.first, item < end ? item : nullptr);
  for (; item < end; item++) state.run(args, params, *item, item + 1 < end ? item + 1 : nullptr);
}

enum Status { kDone = 0, kOtherAbi = 1, kOtherPlanAbi = 2 };

template <class Config, class V>
int run(const RunArgs& args) {
  using S = Shape<Config>;
  const auto& plan = *static_cast<const PlanHeader*>(args.plan);
  const auto& params = *static_cast<const typename V::Params*>(args.params);
  if (args.abi != kArgsAbi) return kOtherAbi;
  if (plan.abi != kPlanAbi) return kOtherPlanAbi;
  if (args.num_threads == 1) {  // no OpenMP at all: a forked child has lost the team's threads
    for (int w = 0; w < plan.num_workers; w++) run_queue<S, V>(args, plan, w);
    for (int i = 0; i < plan.num_merge; i++) merge_row<S, V>(args, params, plan, i);
    return kDone;
  }
  const auto team = [&] {
#pragma omp for schedule(dynamic, 1)
    for (int w = 0; w < plan.num_workers; w++) run_queue<S, V>(args, plan, w);
#pragma omp for schedule(static)
    for (int i = 0; i < plan.num_merge; i++) merge_row<S, V>(args, params, plan, i);
  };
  if (args.num_threads > 1) {
#pragma omp parallel num_threads(args.num_threads)
    team();
  } else {
#pragma omp parallel
    team();
  }
  return kDone;
}

}  // namespace attnloom::host

#define ATTNLOOM_EXPORT extern "C" __attribute__((visibility("default")))

// Defines what every kernel library exports. INFO: a line that names the build.
#define ATTNLOOM_HOST_KERNEL(CONFIG, VARIANT, INFO)                                                           \
  ATTNLOOM_EXPORT int attnloom_run(const attnloom::RunArgs* args) {                                           \
    return attnloom::host::run<CONFIG, VARIANT>(*args);                                                       \
  }                                                                                                           \
  ATTNLOOM_EXPORT int attnloom_ranges(const attnloom::RunArgs* args, int32_t level, int32_t row,              \
                                      int32_t q_begin, int32_t q_tokens, int32_t* bounds) {                   \
    return attnloom::host::ranges<VARIANT>(*args, level, row, q_begin, q_tokens, bounds);                     \
  }                                                                                                           \
  ATTNLOOM_EXPORT const char* attnloom_info() { return INFO; }
