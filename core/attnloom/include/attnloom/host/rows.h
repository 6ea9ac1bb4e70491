// The packed rows of an item: which token and head each one is, and which keys it sees.
#pragma once
#include "../args.h"
#include <attnloom/plan.h>
#include "../variant.h"
#include "check.h"

namespace attnloom::host {

// The query side of the site of `token` under a query head.
ATTNLOOM_FN Site query_site(const RunArgs& args, int token, int qo_head, int group) {
  const IndexView& index = args.index;
  ATTNLOOM_CHECK(token >= 0 && token < index.num_tokens, "query token", token);
  const int request = index.token_request[token];
  ATTNLOOM_CHECK(request >= 0 && request < index.num_requests, "request of a query token", request);
  const int begin = index.qo_indptr[request];
  const int qo_len = index.qo_indptr[request + 1] - begin;
  const int kv_len = index.kv_len[request];
  const int q_index = token - begin;
  ATTNLOOM_CHECK(q_index >= 0 && q_index < qo_len, "q_index", q_index);
  const int q_pos = index.q_pos ? index.q_pos[token] : kv_len - qo_len + q_index;
  return {request, qo_head, qo_head / group, q_index, -1, q_pos, -1, qo_len, kv_len};
}

ATTNLOOM_FN int clamp_to(int64_t x, int lo, int hi) { return x < lo ? lo : x > hi ? hi : static_cast<int>(x); }

// Whether the positions of a block row's keys are listed rather than consecutive.
ATTNLOOM_FN bool positions_listed(const LevelView& level, int row) {
  return level.block_pos || (level.key_pos && level.key_pos_begin[row] >= 0);
}

// Up to N rows of an item: the same packed rows under several kv heads, head after head and `stride` rows apart. Key
// ordinals are those of the block row.
template <class V, int N>
struct Rows {
  static constexpr int slots = V::max_ranges;

  int count;   // packed rows under a head
  int stride;  // count, rounded up to what is computed at once
  int heads;
  int token[N];
  Site site[N];
  int place[N];      // of the token in its block row, for the packed mask
  int lo[slots][N];  // keys that the ranges leave visible: [lo, hi) of each slot, ascending, clipped to the item
  int hi[slots][N];
  bool by_position;  // the ranges cannot be told as ordinals: every pair is tested against `visible`
  typename V::Visible visible[N];

  // Packed rows [first, first + rows) of the item under kv heads [head, head + head_count).
  void describe(const RunArgs& args, const typename V::Params& params, const Item& item, int first, int rows,
                int padded, int head, int head_count) {
    const LevelView& level = args.index.levels[item.level];
    const int group = args.num_qo_heads / args.num_kv_heads;
    count = rows;
    stride = padded;
    heads = head_count;
    by_position = V::has_kv_range && positions_listed(level, item.level_row);
    for (int h = 0; h < heads; h++) {
      int t = first / group, g = first % group;
      for (int i = h * stride; i < h * stride + count; i++) {
        token[i] = level.row_tokens ? level.row_tokens[item.q_begin + t] : item.q_begin + t;
        site[i] = query_site(args, token[i], (head + h) * group + g, group);
        place[i] = item.row_tokens_before + t;
        find_ranges(params, item, i);
        if (++g == group) g = 0, t++;
      }
    }
  }

  // [lo, hi) of slot s of row i within [begin, end).
  ATTNLOOM_FN Range clipped(int s, int i, int begin, int end) const {
    return {max(lo[s][i], begin), min(hi[s][i], end)};
  }

  // The keys of slot s within [begin, end) that rows [first, first + n) see, from the first to the last.
  ATTNLOOM_FN Range hull(int s, int first, int n, int begin, int end) const {
    Range hull{end, begin};
    for (int i = first; i < first + n; i++) {
      const Range seen = clipped(s, i, begin, end);
      if (seen.lo < seen.hi) hull = {min(hull.lo, seen.lo), max(hull.hi, seen.hi)};
    }
    return hull;
  }

  // The same over all slots.
  ATTNLOOM_FN Range hull(int first, int n, int begin, int end) const {
    Range all{end, begin};
    for (int s = 0; s < slots; s++) {
      const Range one = hull(s, first, n, begin, end);
      if (one.lo < one.hi) all = {min(all.lo, one.lo), max(all.hi, one.hi)};
    }
    return all;
  }

 private:
  void find_ranges(const typename V::Params& params, const Item& item, int i) {
    for (int s = 0; s < slots; s++) lo[s][i] = hi[s][i] = item.kv_end;
    if constexpr (V::has_kv_range) {
      const auto set = V::kv_range(params, site[i]);
      if (by_position) {
        visible[i] = set;
      } else {
        for (int s = 0; s < set.count; s++) {
          lo[s][i] = clamp_to(int64_t{set.ranges[s].lo} - item.kv_start, item.kv_begin, item.kv_end);
          hi[s][i] = clamp_to(int64_t{set.ranges[s].hi} - item.kv_start, item.kv_begin, item.kv_end);
        }
        return;
      }
    }
    lo[0][i] = item.kv_begin;
    hi[0][i] = item.kv_end;
  }
};

}  // namespace attnloom::host
