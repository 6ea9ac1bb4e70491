// Keys and values from the pages of the cache into shared memory, a slice of 16 keys a warp at a time.
#pragma once
#include "copy.cuh"
#include "rows.cuh"
#include "shape.cuh"

namespace attnloom::cuda {

// Where the keys of an item lie, under one kv head.
template <class S>
struct Source {
  const RunArgs& args;
  const IndexView& index;
  const Item& item;
  const int& head;

  // The page that holds slot `at` of the item's block row.
  ATTNLOOM_DEVICE int64_t page(uint32_t entry) const {
    const LevelView& level = index.levels[item.level];
    const int64_t at = head * level.indices_head_stride + item.page_begin + entry;
    return level.indices_are_64 ? static_cast<const int64_t*>(level.indices)[at] : static_cast<const int32_t*>(level.indices)[at];
  }
  ATTNLOOM_DEVICE const char* keys() const { return static_cast<const char*>(args.k.data) + head * args.k.stride_head * S::key_bytes; }
  ATTNLOOM_DEVICE const char* values() const { return static_cast<const char*>(args.v.data) + head * args.v.stride_head * S::key_bytes; }
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
    const uint32_t at = static_cast<uint32_t>(source.item.kv_offset + key), page_size = source.index.page_size;
    const uint32_t entry = at / page_size;
    slot = at - entry * page_size;
    page = source.page(entry);
  }

  template <class S>
  ATTNLOOM_DEVICE int64_t bytes(const CacheView& cache) const {
    return (page * cache.stride_page + slot * cache.stride_slot) * S::key_bytes;
  }
};

// Copies the rows of 16 keys, zeros where there is no key. fp8 rows are laid into the upper halves of their places.
template <class Tile, int D, int KeyBytes>
ATTNLOOM_DEVICE void copy_rows(const char* base, int64_t offset, uint32_t exists, uint32_t to) {
  constexpr int pieces = D * KeyBytes / 16, all = kSlice * pieces, first = D / 8 - pieces;
  const int lane = here(lane_id());
#pragma unroll
  for (int i = 0; i < (all + 31) / 32; i++) {
    const int n = lane + 32 * i;
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
  copy_rows<typename S::KTile, S::head_dim, S::key_bytes>(source.keys(), place.bytes<S>(source.args.k), exists, k);
}
template <class S>
ATTNLOOM_DEVICE void copy_values(const Source<S>& source, const Place& place, uint32_t v) {
  const uint32_t exists = __ballot_sync(~0u, place.exists);
  copy_rows<typename S::VTile, S::head_dim_v, S::key_bytes>(source.values(), place.bytes<S>(source.args.v), exists, v);
}

// Where the keys of an item stand in their sequence: consecutive, or listed. Listed ones are looked up as keys are copied.
struct Positions {
  const IndexView& index;
  const Item& item;
  bool listed;

  ATTNLOOM_DEVICE Positions(const IndexView& index, const Item& item) : index(index), item(item) {
    const LevelView& level = index.levels[item.level];
    listed = level.block_pos || (level.key_pos && level.key_pos_begin[item.level_row] >= 0);
  }

  ATTNLOOM_DEVICE int last() const { return item.kv_end - 1; }

  // Of a key of the item, by the lists.
  ATTNLOOM_DEVICE int look_up(int key) const {
    const LevelView& level = index.levels[item.level];
    if (level.key_pos) {
      const int64_t begin = level.key_pos_begin[item.level_row];
      if (begin >= 0) return level.key_pos[begin + key];
    }
    const uint32_t at = static_cast<uint32_t>(item.kv_offset + key), page_size = index.page_size, entry = at / page_size;
    return level.block_pos[item.page_begin + entry] + static_cast<int>(at - entry * page_size);
  }

  // Notes those of 16 keys from `first` on in `to`, by one warp.
  ATTNLOOM_DEVICE void note(int first, int* to) const {
    if (listed && lane_id() < kSlice) to[lane_id()] = look_up(min(first + lane_id(), last()));
  }
};

}  // namespace attnloom::cuda
