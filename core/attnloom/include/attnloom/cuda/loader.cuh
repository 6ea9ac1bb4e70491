// Keys and values from the pages of the cache into shared memory, a slice of 16 keys a warp at a time.
#pragma once
#include "copy.cuh"
#include "rows.cuh"
#include "shape.cuh"

namespace attnloom::cuda {

// Where the keys of an item lie, under one kv head.
template <class S>
struct Source {
  const char* k;
  const char* v;
  const void* pages;  // of the item's block row
  int64_t k_page, k_slot, v_page, v_slot;  // bytes
  uint32_t page_size, first_slot;
  bool wide_ids;

  ATTNLOOM_DEVICE Source(const RunArgs& args, const IndexView& index, const Item& item, int head) {
    constexpr int64_t size = S::key_bytes;
    const LevelView& level = index.levels[item.level];
    k = static_cast<const char*>(args.k.data) + head * args.k.stride_head * size;
    v = static_cast<const char*>(args.v.data) + head * args.v.stride_head * size;
    k_page = args.k.stride_page * size, k_slot = args.k.stride_slot * size;
    v_page = args.v.stride_page * size, v_slot = args.v.stride_slot * size;
    page_size = index.page_size, first_slot = item.kv_offset;
    wide_ids = level.indices_are_64;
    const int64_t list = head * level.indices_head_stride + item.page_begin;
    pages = static_cast<const char*>(level.indices) + list * (wide_ids ? 8 : 4);
  }
};

// One lane's key of a slice: lane l has key l % 16.
struct Place {
  int64_t page;
  uint32_t slot;  // in the page
  bool exists;

  // Looks key `key` up; the page id is not needed before the copies are issued.
  template <class S>
  ATTNLOOM_DEVICE void find(const Source<S>& source, int key, bool wanted) {
    exists = wanted;
    page = 0;
    slot = 0;
    if (!wanted) return;
    const uint32_t at = source.first_slot + static_cast<uint32_t>(key);
    const uint32_t entry = at / source.page_size;
    slot = at - entry * source.page_size;
    page = source.wide_ids ? static_cast<const int64_t*>(source.pages)[entry] : static_cast<const int32_t*>(source.pages)[entry];
  }
};

// Copies the rows of 16 keys, zeros where there is no key. fp8 rows are laid into the upper halves of their places.
template <class Tile, int D, int KeyBytes>
ATTNLOOM_DEVICE void copy_rows(const char* base, int64_t offset, uint32_t exists, uint32_t to) {
  constexpr int pieces = D * KeyBytes / 16, all = kSlice * pieces, first = D / 8 - pieces;
#pragma unroll
  for (int i = 0; i < (all + 31) / 32; i++) {
    const int n = lane_id() + 32 * i;
    const int row = n / pieces % kSlice, piece = n % pieces;
    const bool real = exists >> row & 1;
    const int64_t from = __shfl_sync(~0u, offset, row);
    if (all % 32 == 0 || n < all) copy_16(to + Tile::at(row, first + piece), base + from + piece * 16, real);
  }
}

// Asks for the slice whose keys the lanes have at `place`; `k` and `v` are where its row 0 goes.
template <class S>
ATTNLOOM_DEVICE void copy_keys(const Source<S>& source, const Place& place, uint32_t k) {
  const uint32_t exists = __ballot_sync(~0u, place.exists);
  copy_rows<typename S::KTile, S::head_dim, S::key_bytes>(source.k, place.page * source.k_page + place.slot * source.k_slot, exists, k);
}
template <class S>
ATTNLOOM_DEVICE void copy_values(const Source<S>& source, const Place& place, uint32_t v) {
  const uint32_t exists = __ballot_sync(~0u, place.exists);
  copy_rows<typename S::VTile, S::head_dim_v, S::key_bytes>(source.v, place.page * source.v_page + place.slot * source.v_slot, exists, v);
}

// Where key ordinals stand in their sequence.
struct Positions {
  const int32_t* listed;     // of every key, or null
  const int32_t* of_blocks;  // of every page's first key, or null
  int kv_start, last;        // the block row's first key; the item's last one
  uint32_t page_size, first_slot;

  ATTNLOOM_DEVICE Positions(const IndexView& index, const Item& item) {
    const LevelView& level = index.levels[item.level];
    listed = nullptr;
    if (level.key_pos) {
      const int64_t begin = level.key_pos_begin[item.level_row];
      if (begin >= 0) listed = level.key_pos + begin;
    }
    of_blocks = level.block_pos ? level.block_pos + item.page_begin : nullptr;
    kv_start = item.kv_start, last = item.kv_end - 1;
    page_size = index.page_size, first_slot = item.kv_offset;
  }

  ATTNLOOM_DEVICE bool consecutive() const { return !listed && !of_blocks; }
  // Of the key, or of the item's last one if there are fewer.
  ATTNLOOM_DEVICE int operator()(int key) const {
    key = min(key, last);
    if (listed) return listed[key];
    if (of_blocks) {
      const uint32_t at = first_slot + static_cast<uint32_t>(key), entry = at / page_size;
      return of_blocks[entry] + static_cast<int>(at - entry * page_size);
    }
    return kv_start + key;
  }
};

}  // namespace attnloom::cuda
