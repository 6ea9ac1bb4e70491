// The scheduler's C interface: lengths in, plan out. Mirrored by ctypes in attnloom_scheduler/inputs.py.
#pragma once
#include <attnloom/args.h>
#include <attnloom/plan.h>
#include <cstdint>

namespace attnloom {

constexpr int32_t kSchedulerAbi = 2;

// Row ordinals of the keys that `q_tokens` query tokens of a block row may see: `[bounds[2 i], bounds[2 i + 1])` for
// each of the 0..2 intervals whose count it returns; a negative count is a failure. `q_begin` is as in Item.
using RangeFn = int (*)(const void* ctx, int32_t level, int32_t row, int32_t q_begin, int32_t q_tokens,
                        int32_t* bounds);

// One item of a class costs `alpha + (beta + row_beta * packed rows) * keys` for each kv head it covers, in picoseconds.
struct TileClass {
  int32_t t_q;
  int32_t t_kv;
  int64_t alpha;
  int64_t beta;      // of a key, whatever the rows
  int64_t row_beta;  // of a key and a packed row
};

struct PlanInput {
  int32_t abi;
  int32_t num_workers;
  int32_t num_kv_heads;
  int32_t group;
  int32_t num_classes;            // 1, or 2: short first, then tall
  int32_t batch_invariant_chunk;  // keys, a multiple of every t_kv; 0: off
  int32_t invariant_class;        // the one tile class that batch-invariant plans use
  int32_t workers_per_processor;  // above 1: keys come from memory, once each, and to one of them alone as fast as to all
  int64_t merge_base;        // picoseconds of a merge, whatever its size
  int64_t gamma;             // picoseconds of one merged part row
  int64_t cache_bytes;       // cache that the workers share; 0: heads are not grouped
  int64_t kv_bytes_per_key;  // K and V bytes of one key and kv head
  TileClass classes[2];
  const IndexView* index;  // page tables, positions and masks are not read
  RangeFn range_fn;        // null: every row sees [0, kv_len)
  const void* range_ctx;
};

enum Partitioner : int32_t { kNothing = 0, kContiguousCut = 1, kLongestFirst = 2 };

struct PlanSummary {
  const void* plan;  // PlanHeader, 64-byte aligned; valid until the second successful call after this one
  int64_t nbytes;
  int64_t makespan;  // predicted picoseconds, merge included
  int64_t busiest;   // predicted picoseconds of the busiest worker, merge excluded
  int64_t total;     // predicted picoseconds of all workers together, merge excluded
  int32_t num_items;
  int32_t num_merge;
  int32_t num_merge_parts;
  int32_t num_part_rows;  // <= 2 * num_workers * t_q, unless batch-invariant or composed
  int32_t num_tiles;
  int32_t partitioner;
};

}  // namespace attnloom

#pragma GCC visibility push(default)
extern "C" {
// A planner owns two plan buffers and its scratch memory; one thread uses it at a time. Null when out of memory.
void* attnloom_planner_create();
void attnloom_planner_destroy(void* planner);
// 0: done, `summary` describes the new plan. 1: refused, the last plan stays valid and attnloom_planner_error says why.
int attnloom_planner_plan(void* planner, const attnloom::PlanInput* input, attnloom::PlanSummary* summary);
const char* attnloom_planner_error(const void* planner);
// Sizes of PlanInput, PlanSummary, PlanHeader, Item, IndexView, in this order, to hold mirrors to.
void attnloom_scheduler_sizes(int64_t* sizes);
}
#pragma GCC visibility pop
