// A unit of work: one item's rows under one kv head.
#pragma once
#include "barrier.cuh"
#include "finalize.cuh"
#include "operands.cuh"

namespace attnloom::cuda {

// The workspace rows that some output rows are merged from: those of the first one, in KV order; of the r-th, r further on.
struct Parts {
  const int32_t* rows;
  int count;

  Parts() = default;
  // Of an entry of the merge list of the plan at `base`.
  ATTNLOOM_DEVICE Parts(const PlanHeader& plan, const char* base, int entry) {
    const int32_t* indptr = reinterpret_cast<const int32_t*>(base + plan.merge_indptr) + entry;
    rows = reinterpret_cast<const int32_t*>(base + plan.merge_part) + indptr[0];
    count = indptr[1] - indptr[0];
  }
};

// What the last of the items that have a unit's rows in common needs to merge them.
struct Merging {
  Parts parts;
  int* arrived;  // parts that are written
  int is_last;   // of the items
};

// What all code of a unit reads; the rows lie in shared memory.
template <class S, class V, class R>
struct Unit {
  const RunArgs& args;
  const typename V::Params& params;
  const IndexView& index;
  const PlanHeader& plan;
  const Item& item;
  R& rows;
  Facts<V>& facts;
  Merging& merging;
  const int& head;   // kv head
  const int& count;  // packed rows
  const int& group;

  ATTNLOOM_DEVICE bool partial() const { return item.part_row >= 0; }
  // Whether the last item of the unit's rows merges them.
  ATTNLOOM_DEVICE bool merges() const { return partial() && plan.fused_merge; }
  // Workspace row of the unit's row 0.
  ATTNLOOM_DEVICE int64_t part() const {
    return int64_t{item.part_row} + static_cast<int64_t>(head - item.head0) * count;
  }
  ATTNLOOM_DEVICE bool listed() const {
    return Positions::are_listed(index, item);
  }
  // Row r of the unit; past the last one, row 0.
  ATTNLOOM_DEVICE PackedRow<V> row(int r, bool by_position) const {
    return {index, params, item, static_cast<uint32_t>(r < count ? r : 0), head, static_cast<uint32_t>(group), by_position};
  }

  // Where the query of a row lies, in units of 16 bytes.
  ATTNLOOM_DEVICE uint32_t q_at(const PackedRow<V>& row) const {
    return static_cast<uint32_t>((row.token * args.q.stride_token + row.site.qo_head * args.q.stride_head) / 8);
  }

  // Notes the unit's facts, by one thread. Queries will be multiplied by `query_factor`.
  ATTNLOOM_DEVICE void note_facts(bool listed, float query_factor = 1.0f) const {
    if (thread_id<S>() != S::threads - 32) return;
    const LevelView& level = index.levels[item.level];
    float scale = args.sm_scale / query_factor;
    if constexpr (!V::has_key_transform && !S::keys_ahead) scale *= head_scale(args.k_scale, head);
    const bool masked = level.mask_bits && level.mask_begin[item.level_row] >= 0;
    facts = {Units<V>(scale), listed, masked, V::has_kv_range && listed};
  }

  // Notes what a merge of the unit's rows will need, by one thread, which waits for it.
  ATTNLOOM_DEVICE void note_merging() const {
    if (thread_id<S>() != S::larger(S::threads - 64, 0) || !merges()) return;
    const char* base = static_cast<const char*>(args.plan);
    const int entry = item.merge_id + (head - item.head0) * group;
    merging.parts = Parts(plan, base, entry);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(merging.parts.rows));
    merging.arrived = const_cast<int*>(reinterpret_cast<const int*>(base + plan.arrived)) + entry / group;
  }

  // f(r, real) for the unit's rows, of which each half of a warp takes one; of none left, the other half's.
  template <class F>
  ATTNLOOM_DEVICE void by_half_warps(F f) const {
    const bool second = lane_id() >= kHalfWarp;
#pragma unroll 1
    for (int r = warp_id(); r < count; r += 2 * S::warps) {
      const bool real = !second || r + S::warps < count;
      f(second && real ? r + S::warps : r, real);
    }
  }

  // Describes the rows of the unit, `tile_rows` of them, and its facts, by all threads; each meets `see(r, row, by_position)`.
  template <class F>
  ATTNLOOM_DEVICE void describe(int tile_rows, F see) const {
    const bool by_list = listed();
    note_facts(by_list);
    note_merging();
#pragma unroll 1
    for (int r = thread_id<S>(); r < tile_rows; r += S::threads) {
      const PackedRow<V> one = row(r, V::has_kv_range && by_list);
      see(r, one, V::has_kv_range && by_list);
      rows.put(r, one);
      rows.q_at[r] = q_at(one);
    }
    sync<S>();
  }
  ATTNLOOM_DEVICE void describe(int tile_rows) const {
    describe(tile_rows, [](int, const PackedRow<V>&, bool) {});
  }

  ATTNLOOM_DEVICE KeySite<V> key_site() const {
    const bool single = item.request >= 0;
    return {item.request, head, single ? rows.qo_len[0] : 0, single ? rows.kv_len[0] : item.kv_start + item.row_kv_len,
            V::has_key_transform ? head_scale(args.k_scale, head) : 1.0f,
            V::has_value_transform ? head_scale(args.v_scale, head) : 1.0f};
  }

  // Asks for the query rows, which lie at `at(r)`; rows that do not exist are zeros.
  template <class Tile, class F>
  ATTNLOOM_DEVICE void copy_queries(uint32_t to, F at) const {
    constexpr int pieces = S::head_dim / 8;
    const char* q = static_cast<const char*>(args.q.data);
    const int rows = count;
    if constexpr (S::threads / pieces % 8 == 0 && Tile::t_q * pieces % S::threads == 0) {
      constexpr int apart = S::threads / pieces, at_once = Tile::wgmma ? 8 : 1;
      const int thread = thread_id<S>(), first = thread / pieces, piece = thread % pieces;
      const uint32_t corner = to + Tile::QTile::at(first, piece);
#pragma unroll 1
      for (int i = 0; i < Tile::t_q / apart; i += at_once) {
        uint32_t from[at_once];
#pragma unroll
        for (int n = 0; n < at_once; n++) from[n] = at(first + (i + n) * apart);
#pragma unroll
        for (int n = 0; n < at_once; n++)
          copy_16(corner + (i + n) * apart * Tile::QTile::row_bytes, q + 16 * uint64_t{from[n]} + 16 * piece,
                  first + (i + n) * apart < rows);
      }
    } else {
#pragma unroll(Tile::wgmma ? 4 : 1)
      for (int n = thread_id<S>(); n < Tile::t_q * pieces; n += S::threads)
        copy_16(to + Tile::QTile::at(n / pieces, n % pieces), q + 16 * uint64_t{at(n / pieces)} + 16 * (n % pieces),
                n / pieces < rows);
    }
  }
  template <class Tile>
  ATTNLOOM_DEVICE void copy_queries(uint32_t to) const {
    copy_queries<Tile>(to, [&](int r) { return rows.q_at[r]; });
  }

  // Query transforms, in place, after all rows have come in.
  template <class Tile>
  ATTNLOOM_DEVICE void transform_queries(char* q) const {
    if constexpr (V::has_query_transform) {
      using Queries = SharedRows<S::T, S::q, S::head_dim, typename Tile::QTile, V::rotated_dims>;
#pragma unroll 1
      for (int r = warp_id() * kSlice; r < Tile::t_q; r += S::warps * kSlice) {
        char* slice = q + r * Tile::QTile::row_bytes;
        const auto transform = [&](int row, auto& view) { V::query_transform(params, view, rows.site(r + row, head)); };
        if constexpr (Queries::turns && !Tile::split_keys)
          if (follow_each_other(r)) {
            transform_following_rows<Queries>(slice, transform);
            continue;
          }
        transform_rows<Queries>(slice, transform);
      }
    }
  }

  // Whether rows [r, r + 16), as far as the unit has them, are of one request and head, and their tokens follow each other.
  ATTNLOOM_DEVICE bool follow_each_other(int r) const {
    const int n = lane_id() % kSlice, i = r + n;
    return __all_sync(~0u, i >= count || (rows.request[i] == rows.request[r] && rows.qo_head[i] == rows.qo_head[r] &&
                                          rows.q_pos[i] == rows.q_pos[r] + n));
  }

  // Where rows of fragments go that are written through: row i, half h is packed row first_row + 16 i + 8 h + g of the unit.
  template <int M>
  struct Goal {
    int token[M][2];  // negative: there is no such row
    Site site[M][2];  // but for the kv head
    int kv_head;
    float factor[M][2];  // of O~
  };
  // Finishes the states of rows that are whole.
  template <int M>
  ATTNLOOM_DEVICE void aim(Goal<M>& goal, State16<S, V, M>& state, int first_row) const {
    goal.kv_head = head;
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int r = first_row + 16 * i + 8 * h + lane_id() / 4;
        goal.token[i][h] = r < count ? rows.token[r] : -1;
        goal.site[i][h] = rows.site(r, head);
        State whole{state.m[i][h], state.d[i][h]};
        goal.factor[i][h] = finish_state<V>(args, params, whole, goal.site[i][h]);
        state.m[i][h] = whole.m, state.d[i][h] = whole.d;
      }
  }

  // Joins the lanes' parts of rows' states, in natural units.
  template <int M>
  ATTNLOOM_DEVICE void finish(State16<S, V, M>& state) const {
    state.join_lanes();
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) state.m[i][h] = natural(state.m[i][h], state.d[i][h], facts.units.unit).m;
  }
  // f(i, h, state, row) for each row of fragments.
  template <int M, class F>
  static ATTNLOOM_DEVICE void each_row(const State16<S, V, M>& state, F f) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        Row<SpreadMap<S::head_dim_v, 4>> row;
#pragma unroll
        for (int t = 0; t < S::o_tiles; t++) row.x.at[t][0] = state.o[i][t][2 * h], row.x.at[t][1] = state.o[i][t][2 * h + 1];
        f(i, h, State{state.m[i][h], state.d[i][h]}, row);
      }
  }
  // Writes rows through, of a unit that need not be at hand any longer.
  template <int M>
  ATTNLOOM_DEVICE void write_rows(const State16<S, V, M>& state, const Goal<M>& goal) const {
    each_row(state, [&](int i, int h, const State& whole, auto& row) {
      Site site = goal.site[i][h];
      site.kv_head = goal.kv_head;
      write_finished_row<S, V>(args, params, whole, goal.factor[i][h], row, goal.token[i][h], site, goal.token[i][h] >= 0);
    });
  }
  // Writes partial rows to the workspace.
  template <int M>
  ATTNLOOM_DEVICE void write_parts(const State16<S, V, M>& state, int first_row) const {
    each_row(state, [&](int i, int h, const State& whole, auto& row) {
      const int r = first_row + 16 * i + 8 * h + lane_id() / 4;
      if (r < count) write_part<S>(args, whole, row, part() + r);
    });
  }
  template <int M>
  ATTNLOOM_DEVICE void write_fragments(State16<S, V, M>& state, int first_row) const {
    finish(state);
    if (partial()) return write_parts(state, first_row);
    Goal<M> goal;
    aim(goal, state, first_row);
    write_rows(state, goal);
  }
};

}  // namespace attnloom::cuda
