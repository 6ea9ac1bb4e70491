// The plan: what the scheduler writes and every kernel reads, on the host or from one upload. Plain data only.
#pragma once
#include <cstdint>

namespace attnloom {

constexpr int32_t kPlanAbi = 2;
constexpr int kPlanAlign = 64;  // a plan and its sections begin at multiples of so many bytes

enum ItemFlags : uint16_t {
  kItemPartial = 1,   // writes (O~, m, d) to the workspace; otherwise the item is its rows' only one and writes through
  kItemWholeRow = 2,  // kv_begin == 0 and kv_end == row_kv_len
  kItemReadOnce = 4,  // no other item is known to read its keys, and those of all items fit the cache few times
};

// One unit of work: `q_tokens` query tokens of one block row, heads [head0, head0 + heads), keys [kv_begin, kv_end) of
// the row; the packed rows are at most the t_q of its tile class. kv_begin is a multiple of t_kv, kv_end one or the end
// of the row; keys between that no token may see are the kernel's to skip (a window and its sink are one item).
// kv_begin == kv_end: no keys, the rows are still written.
struct Item {
  int64_t page_begin;  // where the block row starts in the level's indices
  int32_t q_begin;     // first entry of level.row_tokens, or first token where row_tokens is null
  int32_t q_tokens;
  int32_t request;     // -1: tokens of several requests
  int32_t kv_begin;    // ordinals within the block row: key j has kv_index kv_start + j
  int32_t kv_end;
  int32_t kv_start;
  int32_t kv_offset;   // slot of the row's key 0 in its first page
  int32_t level_row;
  int32_t row_tokens_before;  // query tokens of the block row before this item's first
  int32_t row_kv_len;         // keys of the block row
  int32_t part_row;    // -1: write through; else, of head h and packed row r, workspace row
                       // part_row + (h - head0) * q_tokens * group + r
  int32_t merge_id;    // entry of the merge list that the item's packed row 0 of head0 belongs to; -1: none
  uint16_t head0;
  uint16_t heads;
  uint8_t level;
  uint8_t tile_class;
  uint16_t flags;
};
static_assert(sizeof(Item) == 64);

// Where a worker begins: one load away from all that it needs for that.
struct WorkerQueue {
  Item first;     // q_tokens == 0: the worker has none
  int32_t next;   // its others are items [next, end)
  int32_t end;
  int32_t reserved[2];
};
static_assert(sizeof(WorkerQueue) == 80);

// Offsets are bytes from the header's own address.
struct PlanHeader {
  int32_t abi;
  int32_t num_workers;
  int32_t num_items;
  int32_t num_merge;       // output rows (token, qo head) made of partials, by token then head
  int32_t num_merge_parts;
  int32_t num_part_rows;   // rows of the workspace
  int32_t num_classes;
  int32_t t_q[2];
  int32_t t_kv[2];
  int32_t fused_merge;   // 1: an item's rows have all their parts in common, and whoever writes the last of them may merge
                         // them; 0: rows of one item meet in different items
  int64_t workers;       // WorkerQueue[num_workers], the first section: it follows the header
  int64_t items;         // Item[]: all but the first of each worker
  int64_t merge_token;   // int32[num_merge]
  int64_t merge_head;    // int32[num_merge]
  int64_t merge_indptr;  // int32[num_merge + 1] -> merge_part
  int64_t merge_part;    // int32[num_merge_parts]: rows of the workspace, in KV order
  int64_t arrived;       // int32[num_merge / group]: parts written so far, 0 between runs; of merge entry e and the rows
                         // that share its item and kv head: arrived[e / group]
  int64_t total_bytes;
};

}  // namespace attnloom
