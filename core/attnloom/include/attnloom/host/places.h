// Where the keys and values of a tile lie, found through the pages.
#pragma once
#include "rows.h"
#include "shape.h"

namespace attnloom::host {

template <class S>
struct Places {
  using Key = typename S::Key;

  // What stands for a key that no row sees: zeros.
  static constexpr Key kNothing[S::larger(S::head_dim, S::head_dim_v)] = {};

  int head;    // kv head, counted from the block's first
  int begin;   // ordinal of the first key in the block row
  int count;   // keys from there, those that no row sees included
  int padded;  // count, rounded up to whole vectors
  int pos[S::max_keys];
  const Key* key[S::max_keys];
  const Key* value[S::max_keys];

  // Forgets the last tile: keys [first, end) are now of no row.
  void reset(int of_head, int first, int end) {
    head = of_head;
    begin = first;
    count = end - first;
    padded = round_up(count, kLanes);
    for (int j = 0; j < padded; j++) key[j] = value[j] = kNothing;
    for (int j = 0; j < count; j++) pos[j] = 0;
  }

  // Looks up where keys [first, end) of the block row lie.
  void locate(const RunArgs& args, const Item& item, int head, int first, int end) {
    const LevelView& level = args.index.levels[item.level];
    const int page_size = args.index.page_size;
    const int64_t slot = int64_t{item.kv_offset} + first;
    int64_t entry = item.page_begin + slot / page_size;
    int at = static_cast<int>(slot % page_size);
    const int64_t list = head * level.indices_head_stride;
    for (int j = first; j < end; entry++, at = 0) {
      const int64_t page = level.indices_are_64 ? static_cast<const int64_t*>(level.indices)[list + entry]
                                                : static_cast<const int32_t*>(level.indices)[list + entry];
      ATTNLOOM_CHECK(page >= 0 && page < args.num_pages, "page id", page);
      const int stop = min(end, j + page_size - at);
      const Key* k_at = static_cast<const Key*>(args.k.data) + page * args.k.stride_page + at * args.k.stride_slot +
                        head * args.k.stride_head;
      const Key* v_at = static_cast<const Key*>(args.v.data) + page * args.v.stride_page + at * args.v.stride_slot +
                        head * args.v.stride_head;
      const int first_pos = level.block_pos ? level.block_pos[entry] + at : item.kv_start + j;
      for (int i = 0; i < stop - j; i++) {
        key[j - begin + i] = k_at + i * args.k.stride_slot;
        value[j - begin + i] = v_at + i * args.v.stride_slot;
        pos[j - begin + i] = first_pos + i;
      }
      j = stop;
    }
    if (level.key_pos && level.key_pos_begin[item.level_row] >= 0) {
      const int32_t* listed = level.key_pos + level.key_pos_begin[item.level_row];
      for (int j = first; j < end; j++) pos[j - begin] = listed[j];
    }
  }

  // Asks for the keys, or the values, [j, j + n) ahead of their use: into the second-level cache, whose queue of misses
  // is the longer (decode of bfloat16 runs 1.9 times as fast as with the first level asked).
  ATTNLOOM_FN void prefetch_keys(int j, int n) const { prefetch<S::head_dim>(key + j, min(n, padded - j)); }
  ATTNLOOM_FN void prefetch_values(int j, int n) const { prefetch<S::head_dim_v>(value + j, min(n, padded - j)); }

 private:
  template <int N>
  static ATTNLOOM_FN void prefetch(const Key* const* rows, int n) {
    for (int i = 0; i < n; i++)
      for (int byte = 0; byte < N * static_cast<int>(sizeof(Key)); byte += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(rows[i]) + byte, 0, 1);
  }
};

}  // namespace attnloom::host
