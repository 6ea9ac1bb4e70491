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
    return level.indices_are_64 ? in_global(static_cast<const int64_t*>(level.indices))[at]
                                : in_global(static_cast<const int32_t*>(level.indices))[at];
  }
  ATTNLOOM_DEVICE const char* keys() const { return static_cast<const char*>(args.k.data) + head * args.k.stride_head * S::key_bytes; }
  ATTNLOOM_DEVICE const char* values() const { return static_cast<const char*>(args.v.data) + head * args.v.stride_head * S::key_bytes; }
};

constexpr int64_t kNowhere = -16;

// Where the 16 keys of a slice lie, in bytes from their head's first; negative where there is no key.
struct Slice {
  int64_t k[kSlice], v[kSlice];
};

// One lane's part in finding a slice: lane l looks up where key l % 16 lies, in K for l < 16, else in V.
struct Place {
  int64_t page;
  uint32_t slot;  // in the page
  bool exists;

  // Looks key `key` up; the page id is not waited for.
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

  // Writes what was found into `slice`, for the warp.
  template <class S>
  ATTNLOOM_DEVICE void put_down(const RunArgs& args, Slice& slice) const {
    const bool second = lane_id() >= kSlice;
    const int64_t stride_page = second ? args.v.stride_page : args.k.stride_page;
    const int64_t stride_slot = second ? args.v.stride_slot : args.k.stride_slot;
    reinterpret_cast<int64_t*>(&slice)[lane_id()] = exists ? (page * stride_page + slot * stride_slot) * S::key_bytes : kNowhere;
  }
};

// Copies the rows of 16 keys, zeros where there is no key. fp8 rows are laid into the upper halves of their places.
template <class Tile, int D, int KeyBytes>
ATTNLOOM_DEVICE void copy_rows(const char* base, const int64_t* offsets, uint32_t to) {
  constexpr int pieces = D * KeyBytes / 16, all = kSlice * pieces, first = D / 8 - pieces;
  const int lane = lane_id();
  if constexpr (32 % pieces == 0 && Tile::swizzled) {
    constexpr int rows = 32 / pieces;  // at a time
    const int row = lane / pieces, piece = lane % pieces;
    base += piece * 16;
    const uint32_t corner = to + Tile::at(row, first + piece);
#pragma unroll
    for (int i = 0; i < kSlice / rows; i++) {
      const int64_t from = (offsets + row)[i * rows];
      copy_16((corner ^ (i * rows & 7) * 16) + i * rows * Tile::row_bytes, base + from, from >= 0);
    }
  } else {
#pragma unroll
    for (int i = 0; i < (all + 31) / 32; i++) {
      const int n = lane + 32 * i, row = n / pieces, piece = n % pieces;
      if (all % 32 != 0 && n >= all) break;
      const int64_t from = offsets[row];
      copy_16(to + Tile::at(row, first + piece), base + from + piece * 16, from >= 0);
    }
  }
}

// Asks for the keys, or values, of a slice; `k` and `v` are where row 0 of it goes.
template <class S>
ATTNLOOM_DEVICE void copy_keys(const Source<S>& source, const Slice& slice, uint32_t k) {
  copy_rows<typename S::KTile, S::head_dim, S::key_bytes>(source.keys(), slice.k, k);
}
template <class S>
ATTNLOOM_DEVICE void copy_values(const Source<S>& source, const Slice& slice, uint32_t v) {
  copy_rows<typename S::VTile, S::head_dim_v, S::key_bytes>(source.values(), slice.v, v);
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
