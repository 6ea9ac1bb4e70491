// Keys and values from the pages of the cache into shared memory, a slice of 16 keys a warp at a time.
#pragma once
#include "copy.cuh"
#include "rows.cuh"
#include "shape.cuh"

namespace attnloom::cuda {

// A stride of the cache in units of 16 bytes.
template <class S>
ATTNLOOM_DEVICE uint32_t stride_units(int64_t stride) {
  return static_cast<uint32_t>(static_cast<uint64_t>(stride) * S::key_bytes / 16);
}

// Where the keys of an item lie, under one kv head.
template <class S>
struct Source {
  const RunArgs& args;
  const IndexView& index;
  const Item& item;
  const int& head;

  // The page list of the item's block row.
  ATTNLOOM_DEVICE const char* pages() const {
    const LevelView& level = index.levels[item.level];
    const int64_t at = head * level.indices_head_stride + item.page_begin;
    return static_cast<const char*>(level.indices) + at * (level.indices_are_64 ? 8 : 4);
  }
  ATTNLOOM_DEVICE bool wide() const { return index.levels[item.level].indices_are_64; }
  ATTNLOOM_DEVICE const char* keys() const {
    if constexpr (S::keys_ahead) return keys_ahead() - int64_t{item.kv_offset} * S::head_dim * S::key_bytes;
    else return of_head(args.k);
  }
  ATTNLOOM_DEVICE const char* values() const { return of_head(args.v); }

  // Where key 0 of the item's block row would lie among those that were transformed ahead.
  ATTNLOOM_DEVICE const char* keys_ahead() const {
    return static_cast<const char*>(args.k.data) + int64_t{slice_ahead()} * kSlice * S::head_dim * S::key_bytes;
  }
  ATTNLOOM_DEVICE int slice_ahead() const {
    int row = item.level_row;
    for (int level = 0; level < item.level; level++) row += index.levels[level].num_rows;
    return head * index.ahead[index.num_ahead].begin + index.ahead[row].begin - index.ahead[row].first;
  }
  // From a page of K to the next, in units of 16 bytes. Keys transformed ahead lie as if the pages of a row followed each other.
  ATTNLOOM_DEVICE uint32_t stride_page() const {
    if constexpr (S::keys_ahead) return index.page_size * stride_units<S>(args.k.stride_slot);
    else return stride_units<S>(args.k.stride_page);
  }

 private:
  ATTNLOOM_DEVICE const char* of_head(const CacheView& cache) const {
    return static_cast<const char*>(cache.data) + head * cache.stride_head * S::key_bytes;
  }
};

// A way through the keys of an item, in steps of one length; every lane goes its own.
struct Trail {
  const char* pages;
  uint32_t page_size, step_entries, step_slots;
  bool wide;

  Trail() = default;
  template <class S>
  ATTNLOOM_DEVICE Trail(const Source<S>& source, int step) {
    pages = source.pages(), wide = source.wide();
    page_size = source.index.page_size;
    step_entries = step / page_size;
    step_slots = step - step_entries * page_size;
  }
};

// The way through the keys of a unit, for all its warps: where K (0) and V (1) begin, and strides in units of 16 bytes. Keys
// that were transformed ahead begin with the block row's first.
struct Route {
  Trail trail;
  const char* base[2];
  uint32_t stride_page[2], stride_slot[2];
  int step;       // 0: none has been found
  int row_ahead;  // of key 0 among those transformed ahead

  template <class S>
  ATTNLOOM_DEVICE void find(const Source<S>& source, int step) {
    if (step == this->step) trail.pages = source.pages(), trail.wide = source.wide();
    else begin(source, step);
    if constexpr (S::keys_ahead) base[0] = source.keys_ahead(), row_ahead = source.slice_ahead() * kSlice;
    else base[0] = source.keys();
    base[1] = source.values();
  }

 private:
  // The first unit: others have more in common with it than where their keys begin.
  template <class S>
  ATTNLOOM_DEVICE void begin(const Source<S>& source, int step) {
    this->step = step;
    trail = Trail(source, step);
    const CacheView &k = source.args.k, &v = source.args.v;
    stride_page[0] = source.stride_page(), stride_page[1] = stride_units<S>(here(v.stride_page));
    stride_slot[0] = stride_units<S>(here(k.stride_slot)), stride_slot[1] = stride_units<S>(here(v.stride_slot));
  }
};

constexpr uint32_t kNowhere = 0xffffffff;

// Where the 16 keys of a slice lie, in K and in V, in units of 16 bytes from their head's first, so that 32 bits reach
// across 64 GiB; kNowhere where there is no key. Those that one lane copies stand side by side.
struct Slice {
  template <int Count>
  struct alignas(4 * (Count < 4 ? Count : 4)) Run {
    uint32_t at[Count];
  };
  alignas(16) uint32_t at[2][kSlice];

  template <int Rows>
  static ATTNLOOM_DEVICE int place(int row) { return row % Rows * (kSlice / Rows) + row / Rows; }

  // Those of rows `row`, `row` + Rows, ...
  template <int Which, int Rows>
  ATTNLOOM_DEVICE Run<kSlice / Rows> run(int row) const {
    return *reinterpret_cast<const Run<kSlice / Rows>*>(at[Which] + place<Rows>(row));
  }
};

// One lane's part in finding slices: lane l looks up where key l % 16 of one lies, in K and in V.
struct Place {
  uint32_t entry, slot;  // of the page list; in the page
  int32_t page;          // negative: there is no key

  // Goes to key `key` of the item.
  ATTNLOOM_DEVICE void seek(const Trail& trail, const Item& item, int key) {
    const uint32_t at = static_cast<uint32_t>(item.kv_offset + key);
    entry = at / trail.page_size;
    slot = at - entry * trail.page_size;
  }
  ATTNLOOM_DEVICE void step(const Trail& trail) {
    entry += trail.step_entries;
    slot += trail.step_slots;
    if (slot >= trail.page_size) slot -= trail.page_size, entry++;
  }
  ATTNLOOM_DEVICE void step_back(const Trail& trail) {
    if (slot < trail.step_slots) slot += trail.page_size, entry--;
    slot -= trail.step_slots;
    entry -= trail.step_entries;
  }

  // Asks for the page id, without waiting for it.
  ATTNLOOM_DEVICE void look_up(const Trail& trail, bool wanted) {
    page = -1;
    if (!wanted) return;
    // The low half tells a 64-bit id: nothing here waits for the load.
    page = in_global(reinterpret_cast<const int32_t*>(trail.pages))[static_cast<uint64_t>(entry) << trail.wide];
  }

  // Writes where key lane_id() % 16 of `slice` lies in K and in V.
  template <class S>
  ATTNLOOM_DEVICE void put_down(const Source<S>& source, Slice& slice) const {
    const CacheView &k = source.args.k, &v = source.args.v;
    put<S, typename S::StoredKTile, 0>(slice, source.stride_page(), stride_units<S>(k.stride_slot));
    put<S, typename S::StoredVTile, 1>(slice, stride_units<S>(v.stride_page), stride_units<S>(v.stride_slot));
  }
  // The same for tiles KTile and VTile, half a warp each; keys that were transformed ahead follow each other.
  template <class S, class KTile, class VTile>
  ATTNLOOM_DEVICE void put_down(const Route& route, Slice& slice) const {
    if (lane_id() < kSlice && !S::keys_ahead) put<S, KTile, 0>(slice, route.stride_page[0], route.stride_slot[0]);
    else put<S, VTile, 1>(slice, route.stride_page[1], route.stride_slot[1]);
  }

 private:
  template <class S, class Tile, int Which>
  ATTNLOOM_DEVICE void put(Slice& slice, uint32_t stride_page, uint32_t stride_slot) const {
    constexpr int row_bytes = (Which ? S::head_dim_v : S::head_dim) * S::key_bytes;
    const uint32_t of = Which == 0 && S::keys_ahead ? entry : static_cast<uint32_t>(page);
    slice.at[Which][Slice::place<Tile::template rows_at_a_time<row_bytes>()>(lane_id() % kSlice)] =
        page >= 0 ? of * stride_page + slot * stride_slot : kNowhere;
  }
};

// Copies 16 rows of K (Which: 0) or of V (1), zeros where there is no key. Rows that are narrower than their places are
// laid into the upper ends of these. `policy`: of the cache, if it is told one.
template <class Tile, int RowBytes, int Which, class... Policy>
ATTNLOOM_DEVICE void copy_rows(const char* base, const Slice& slice, uint32_t to, Policy... policy) {
  constexpr int pieces = RowBytes / 16, all = kSlice * pieces, first = Tile::pieces - pieces;
  constexpr int rows = Tile::template rows_at_a_time<RowBytes>();
  const int lane = lane_id();
  if constexpr (Tile::in_blocks) {
    const int row = lane / 8, piece = lane % 8;
    base = here(base + piece * 16);
    const uint32_t corner = to + Tile::at(row, piece);
    const auto from = slice.template run<Which, rows>(row);
#pragma unroll
    for (int i = 0; i < kSlice / rows; i++)
#pragma unroll
      for (int block = first / 8; block < (Tile::pieces + 7) / 8; block++) {
        const int at = 8 * block + piece;
        if (at < first || at >= Tile::pieces) continue;
        copy_16((corner ^ (i * rows & 7) * 16) + block * Tile::block_bytes + i * rows * Tile::row_bytes,
                base + 16 * uint64_t{from.at[i]} + (8 * block - first) * 16, from.at[i] != kNowhere, policy...);
      }
  } else if constexpr (32 % pieces == 0 && Tile::swizzled) {
    const int row = lane / pieces, piece = lane % pieces;
    base = here(base + piece * 16);
    const uint32_t corner = to + Tile::at(row, first + piece);
    const auto from = slice.template run<Which, rows>(row);
#pragma unroll
    for (int i = 0; i < kSlice / rows; i++)
      copy_16((corner ^ (i * rows & 7) * 16) + i * rows * Tile::row_bytes, base + 16 * uint64_t{from.at[i]}, from.at[i] != kNowhere,
              policy...);
  } else {
#pragma unroll
    for (int i = 0; i < (all + 31) / 32; i++) {
      const int n = lane + 32 * i, row = n / pieces, piece = n % pieces;
      if (all % 32 != 0 && n >= all) break;
      const uint32_t from = slice.at[Which][Slice::place<rows>(row)];
      copy_16(to + Tile::at(row, first + piece), base + 16 * uint64_t{from} + piece * 16, from != kNowhere, policy...);
    }
  }
}

// Copies 32 rows to a tile of blocks; each lane says where one of them lies, in units of 16 bytes.
template <class Tile, int RowBytes>
ATTNLOOM_DEVICE void copy_32_rows(const char* base, uint32_t at, uint32_t to) {
  static_assert(Tile::in_blocks && RowBytes == Tile::pieces * 16);
  constexpr int rows = Tile::template rows_at_a_time<RowBytes>();
  const int lane = lane_id(), row = lane / 8, piece = lane % 8;
  base += piece * 16;
  const uint32_t corner = to + Tile::at(row, piece);
#pragma unroll 2
  for (int i = 0; i < 32 / rows; i++) {
    const uint32_t from = __shfl_sync(~0u, at, i * rows + row);
#pragma unroll
    for (int block = 0; block < (Tile::pieces + 7) / 8; block++)
      if (8 * block + piece < Tile::pieces)
        copy_16((corner ^ (i * rows & 7) * 16) + block * Tile::block_bytes + i * rows * Tile::row_bytes,
                base + 16 * uint64_t{from} + block * 128, from != kNowhere);
  }
}

// A way through rows that follow each other in memory, 16 at a time: where this lane's part of the first 16 lies, and goes.
template <class Tile, int RowBytes>
struct FollowingRows {
  static constexpr int pieces = RowBytes / 16, all = kSlice * pieces, rows = 32 / pieces;
  static constexpr bool even = 32 % pieces == 0 && Tile::swizzled;

  const char* from;
  uint32_t to;

  FollowingRows() = default;
  ATTNLOOM_DEVICE FollowingRows(const char* from, uint32_t to)
      : from(from + lane_id() * 16), to(to + (even ? Tile::at(lane_id() / pieces, lane_id() % pieces) : 0)) {}

  // Copies 16 rows that lie `bytes` further on, to where `bytes_to` leads.
  ATTNLOOM_DEVICE void copy(int64_t bytes, uint32_t bytes_to) const {
    const char* const first = from + bytes;
    const uint32_t corner = to + bytes_to;
#pragma unroll
    for (int i = 0; i < (all + 31) / 32; i++) {
      const int n = lane_id() + 32 * i;
      if (all % 32 != 0 && n >= all) break;
      if constexpr (even) copy_16((corner ^ (i * rows & 7) * 16) + i * rows * Tile::row_bytes, first + 512 * i, true);
      else copy_16(corner + Tile::at(n / pieces, n % pieces), first + 512 * i, true);
    }
  }
};

// Asks for the keys, or values, of a slice as the cache stores them; `k` and `v` are where row 0 of it goes.
template <class S, class... Policy>
ATTNLOOM_DEVICE void copy_keys(const char* keys, const Slice& slice, uint32_t k, Policy... policy) {
  copy_rows<typename S::StoredKTile, S::head_dim * S::key_bytes, 0>(keys, slice, k, policy...);
}
template <class S, class... Policy>
ATTNLOOM_DEVICE void copy_values(const char* values, const Slice& slice, uint32_t v, Policy... policy) {
  copy_rows<typename S::StoredVTile, S::head_dim_v * S::key_bytes, 1>(values, slice, v, policy...);
}

// Where the keys of an item stand in their sequence: consecutive, or listed. Listed ones are looked up as keys are copied.
struct Positions {
  const IndexView& index;
  const Item& item;
  const bool& listed;

  static ATTNLOOM_DEVICE bool are_listed(const IndexView& index, const Item& item) {
    const LevelView& level = index.levels[item.level];
    return level.block_pos || (level.key_pos && level.key_pos_begin[item.level_row] >= 0);
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
