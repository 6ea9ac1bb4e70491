// The packed rows of a unit of work (one item under one kv head): which token and head each is, and which keys it sees.
#pragma once
#include <attnloom/plan.h>

#include "../variant.h"
#include "mma.cuh"

namespace attnloom::cuda {

// The query side of the site of `token`, of a request, under a query head.
ATTNLOOM_DEVICE Site query_site(const IndexView& index, int request, int token, int qo_head, int group) {
  const int begin = index.qo_indptr[request];
  const int qo_len = index.qo_indptr[request + 1] - begin;
  const int kv_len = index.kv_len[request];
  const int q_index = token - begin;
  const int q_pos = index.q_pos ? index.q_pos[token] : kv_len - qo_len + q_index;
  return {request, qo_head, qo_head / group, q_index, -1, q_pos, -1, qo_len, kv_len};
}

// One packed row: which it is, and the keys it sees.
template <class V>
struct PackedRow {
  static constexpr int slots = V::max_ranges;

  int token, place;          // `place`: of the token in its block row, for the packed mask
  Site site;                 // of no key
  int lo[slots], hi[slots];  // visible keys, clipped to the item; positions where `by_position`
  Line line;                 // where logits become linear in distance

  // Row r of the item under `head`.
  ATTNLOOM_DEVICE PackedRow(const IndexView& index, const typename V::Params& params, const Item& item, uint32_t r, int head,
                            uint32_t group, bool by_position) {
    const int32_t* row_tokens = index.levels[item.level].row_tokens;
    const int t = r / group;
    token = row_tokens ? row_tokens[item.q_begin + t] : item.q_begin + t;
    place = item.row_tokens_before + t;
    const int request = item.request >= 0 ? item.request : index.token_request[token];
    site = query_site(index, request, token, head * group + (r - t * group), group);
    find_ranges(params, item, by_position);
    if constexpr (V::linear_in_distance) line = V::line(params, site);
  }

 private:
  ATTNLOOM_DEVICE void find_ranges(const typename V::Params& params, const Item& item, bool by_position) {
    if constexpr (V::has_kv_range) {
      const auto set = V::kv_range(params, site);
#pragma unroll
      for (int s = 0; s < slots; s++) {
        const Range one = s < set.count ? set.ranges[s] : Range{0, 0};
        if (by_position) {
          lo[s] = one.lo;
          hi[s] = one.hi;
        } else if (s < set.count) {
          const int start = item.kv_start, begin = start + item.kv_begin, end = start + item.kv_end;
          lo[s] = min(max(one.lo, begin), end) - start;
          hi[s] = min(max(one.hi, begin), end) - start;
        } else {
          lo[s] = hi[s] = item.kv_end;
        }
      }
    } else {
      lo[0] = item.kv_begin;
      hi[0] = item.kv_end;
    }
  }
};

// Up to N rows, in shared memory. Key ordinals are those of the block row. Rows past the last repeat row 0.
template <class V, int N>
struct Rows {
  static constexpr int slots = V::max_ranges;

  int token[N], request[N], qo_head[N], q_index[N], q_pos[N], qo_len[N], kv_len[N];
  int place[N];
  uint32_t q_at[N];  // where the query row lies, in units of 16 bytes
  int lo[slots][N], hi[slots][N];
  Line line[V::linear_in_distance ? N : 1];

  ATTNLOOM_DEVICE Site site(int r, int kv_head) const {
    return {request[r], qo_head[r], kv_head, q_index[r], -1, q_pos[r], -1, qo_len[r], kv_len[r]};
  }

  ATTNLOOM_DEVICE void put(int r, const PackedRow<V>& row) {
    token[r] = row.token;
    place[r] = row.place;
    request[r] = row.site.request;
    qo_head[r] = row.site.qo_head;
    q_index[r] = row.site.q_index;
    q_pos[r] = row.site.q_pos;
    qo_len[r] = row.site.qo_len;
    kv_len[r] = row.site.kv_len;
#pragma unroll
    for (int s = 0; s < slots; s++) lo[s][r] = row.lo[s], hi[s][r] = row.hi[s];
    if constexpr (V::linear_in_distance) line[r] = row.line;
  }
};

// For each slot, the keys that some of a set of rows see (from the first to the last) and those that all of them see.
template <int Slots>
struct Seen {
  int lo[Slots], hi[Slots], all_lo[Slots], all_hi[Slots];

  // Of the rows that the lanes of the warp have, on every lane: the keys that some of them see.
  template <class Row>
  ATTNLOOM_DEVICE void look_for_some(const Row& row, const Item& item, bool by_position) {
#pragma unroll
    for (int s = 0; s < Slots; s++) {
      const bool some = row.lo[s] < row.hi[s];
      lo[s] = __reduce_min_sync(~0u, some ? row.lo[s] : item.kv_end);
      hi[s] = __reduce_max_sync(~0u, some ? row.hi[s] : item.kv_begin);
      if (by_position) {  // positions do not tell which keys
        lo[s] = s == 0 ? item.kv_begin : item.kv_end;
        hi[s] = s == 0 ? item.kv_end : item.kv_begin;
      }
    }
  }
  // Those that all of them see.
  template <class Row>
  ATTNLOOM_DEVICE void look_for_all(const Row& row, const Item& item, bool by_position) {
#pragma unroll
    for (int s = 0; s < Slots; s++) {
      all_lo[s] = __reduce_max_sync(~0u, max(row.lo[s], item.kv_begin));
      all_hi[s] = by_position ? item.kv_begin : __reduce_min_sync(~0u, min(row.hi[s], item.kv_end));
    }
  }
  // Of the rows that the lanes of the warp have, where they are `real`.
  template <class Row>
  ATTNLOOM_DEVICE void look(const Row& row, bool real, const Item& item, bool by_position) {
#pragma unroll
    for (int s = 0; s < Slots; s++) {
      const bool some = real && (by_position ? s == 0 : row.lo[s] < row.hi[s]);
      lo[s] = __reduce_min_sync(~0u, !some ? item.kv_end : by_position ? item.kv_begin : row.lo[s]);
      hi[s] = __reduce_max_sync(~0u, !some ? item.kv_begin : by_position ? item.kv_end : row.hi[s]);
      all_lo[s] = __reduce_max_sync(~0u, real && !by_position ? row.lo[s] : item.kv_begin);
      all_hi[s] = __reduce_min_sync(~0u, by_position ? item.kv_begin : real ? row.hi[s] : item.kv_end);
    }
  }
  // Of rows [first, first + n), on every lane of the warp.
  template <class R>
  ATTNLOOM_DEVICE void look(const R& rows, int first, int n, const Item& item, bool by_position) {
#pragma unroll
    for (int s = 0; s < Slots; s++) {
      int low = item.kv_end, high = item.kv_begin, most_low = item.kv_begin, least_high = item.kv_end;
      if (by_position) {
        if (s == 0 && n > 0) low = item.kv_begin, high = item.kv_end;
        least_high = item.kv_begin;
      } else {
#pragma unroll 1
        for (int r = first + lane_id(); r < first + n; r += 32) {
          const int a = rows.lo[s][r], b = rows.hi[s][r];
          if (a < b) low = min(low, a), high = max(high, b);
          most_low = max(most_low, a);
          least_high = min(least_high, b);
        }
      }
      low = __reduce_min_sync(~0u, low);
      high = __reduce_max_sync(~0u, high);
      most_low = __reduce_max_sync(~0u, most_low);
      least_high = __reduce_min_sync(~0u, least_high);
      lo[s] = low, hi[s] = high, all_lo[s] = most_low, all_hi[s] = least_high;
    }
  }

  // With what other rows see.
  ATTNLOOM_DEVICE void join(const Seen& other) {
#pragma unroll
    for (int s = 0; s < Slots; s++) {
      lo[s] = min(lo[s], other.lo[s]), hi[s] = max(hi[s], other.hi[s]);
      all_lo[s] = max(all_lo[s], other.all_lo[s]), all_hi[s] = min(all_hi[s], other.all_hi[s]);
    }
  }

  ATTNLOOM_DEVICE bool sees(int key) const {
    bool any = false;
#pragma unroll
    for (int s = 0; s < Slots; s++) any |= lo[s] <= key && key < hi[s];
    return any;
  }
  ATTNLOOM_DEVICE bool sees_some(int begin, int end) const {
    bool any = false;
#pragma unroll
    for (int s = 0; s < Slots; s++) any |= lo[s] < hi[s] && lo[s] < end && begin < hi[s];
    return any;
  }
  // Whether `sees` holds for every key of [begin, end); not if that takes two slots.
  ATTNLOOM_DEVICE bool sees_every(int begin, int end) const {
    bool any = false;
#pragma unroll
    for (int s = 0; s < Slots; s++) any |= lo[s] <= begin && end <= hi[s];
    return any;
  }
  // Whether every row sees every key of [begin, end).
  ATTNLOOM_DEVICE bool sees_all(int begin, int end) const {
    bool any = false;
#pragma unroll
    for (int s = 0; s < Slots; s++) any |= all_lo[s] <= begin && end <= all_hi[s];
    return any;
  }
  // The first tile of T keys, from the `tile`-th on, of which some row sees a key; kNone where there is none.
  static constexpr int kNone = 0x7fffffff;
  template <int T>
  ATTNLOOM_DEVICE int next_tile(int tile) const {
    int next = kNone;
#pragma unroll
    for (int s = 0; s < Slots; s++)
      if (lo[s] < hi[s] && static_cast<uint32_t>(tile) * T < static_cast<uint32_t>(hi[s]))
        next = min(next, max(tile, static_cast<int>(static_cast<uint32_t>(lo[s]) / T)));
    return next;
  }
  // The last such tile before the `tile`-th.
  template <int T>
  ATTNLOOM_DEVICE int tile_before(int tile) const {
    int last = -1;
#pragma unroll
    for (int s = 0; s < Slots; s++)
      if (lo[s] < hi[s] && static_cast<uint32_t>(lo[s]) < static_cast<uint32_t>(tile) * T)
        last = max(last, min(tile - 1, static_cast<int>(static_cast<uint32_t>(hi[s] - 1) / T)));
    return last < 0 ? kNone : last;
  }
  template <int T>
  ATTNLOOM_DEVICE int last_tile() const { return tile_before<T>(0x80000000u / T); }
};

}  // namespace attnloom::cuda
