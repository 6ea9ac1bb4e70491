// A unit of work: one item's rows under one kv head.
#pragma once
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
    const LevelView& level = index.levels[item.level];
    return level.block_pos || (level.key_pos && level.key_pos_begin[item.level_row] >= 0);
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
    if (threadIdx.x != 32) return;
    const LevelView& level = index.levels[item.level];
    float scale = args.sm_scale / query_factor;
    if constexpr (!V::has_key_transform) scale *= head_scale(args.k_scale, head);
    const bool masked = level.mask_bits && level.mask_begin[item.level_row] >= 0;
    facts = {Units<V>(scale), listed, masked, V::has_kv_range && listed};
  }

  // Notes what a merge of the unit's rows will need, by one thread, which waits for it.
  ATTNLOOM_DEVICE void note_merging() const {
    if (threadIdx.x != 64 || !merges()) return;
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

  // Describes the rows of the unit, `tile_rows` of them, and its facts, by all threads.
  ATTNLOOM_DEVICE void describe(int tile_rows) const {
    const bool by_list = listed();
    note_facts(by_list);
    note_merging();
#pragma unroll 1
    for (int r = threadIdx.x; r < tile_rows; r += S::threads) {
      const PackedRow<V> one = row(r, V::has_kv_range && by_list);
      rows.put(r, one);
      rows.q_at[r] = q_at(one);
    }
    __syncthreads();
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
    constexpr int pieces = S::head_dim / 8, at_once = Tile::wgmma ? 4 : 1;
    const char* q = static_cast<const char*>(args.q.data);
    const auto copy = [&](int r, int piece) {
      copy_16(to + Tile::QTile::at(r, piece), q + 16 * uint64_t{at(r)} + 16 * piece, r < count);
    };
    if constexpr (S::threads % pieces == 0 && S::threads / pieces % 8 == 0) {
#pragma unroll at_once
      for (int i = 0; i < Tile::t_q * pieces / S::threads; i++)
        copy(threadIdx.x / pieces + i * (S::threads / pieces), threadIdx.x % pieces);
    } else {
#pragma unroll at_once
      for (int n = threadIdx.x; n < Tile::t_q * pieces; n += S::threads) copy(n / pieces, n % pieces);
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
      for (int r = warp_id() * kSlice; r < Tile::t_q; r += S::warps * kSlice)
        transform_rows<Queries>(q + r * Tile::QTile::row_bytes, [&](int row, auto& view) {
          V::query_transform(params, view, rows.site(r + row, head));
        });
    }
  }

  // Writes rows of fragments: row i, half h is packed row first_row + 16 i + 8 h + g of the unit.
  template <int M>
  ATTNLOOM_DEVICE void write_fragments(State16<S, V, M>& state, int first_row, float unit) const {
    state.join_lanes();
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int r = first_row + 16 * i + 8 * h + lane_id() / 4;
        Row<SpreadMap<S::head_dim_v, 4>> row;
#pragma unroll
        for (int t = 0; t < S::o_tiles; t++) row.x.at[t][0] = state.o[i][t][2 * h], row.x.at[t][1] = state.o[i][t][2 * h + 1];
        const State whole = natural(state.m[i][h], state.d[i][h], unit);
        if (partial()) {
          if (r < count) write_part<S>(args, whole, row, part() + r);
        } else {
          write_row<S, V>(args, params, whole, row, rows.token[r], rows.site(r, head), r < count);
        }
      }
  }
};

}  // namespace attnloom::cuda
