// Keys transformed ahead: of a batch whose units load the same keys again and again, a kernel before that of attention takes
// every 16 keys of a block row under a kv head once, a warp at a time, and lays them down as the units then load them.
#pragma once
#include "unit.cuh"

namespace attnloom::cuda {

constexpr int kAheadWarps = 4;  // of a block

// What the attention kernel is made of where its keys are transformed already.
template <class S>
struct WithKeysAhead : S {
  static constexpr bool keys_ahead = true;
};
template <class V>
struct WithoutKeyTransform : V {
  static constexpr bool has_key_transform = false;
};

// Whether a kernel can go ahead. Beside fp8 values, keys would have to be of 8 bits too.
template <class S, class V>
constexpr bool kGoesAhead = V::has_key_transform && !S::narrow && !S::one_class;

// The row of a slice.
ATTNLOOM_DEVICE int row_ahead_of(const IndexView& index, int slice) {
  int row = 0, end = static_cast<int>(index.num_ahead);
  while (end - row > 1) {
    const int middle = (row + end) / 2;
    if (index.ahead[middle].begin <= slice) row = middle;
    else end = middle;
  }
  return row;
}

// The keys of a slice, as an item of no queries.
ATTNLOOM_DEVICE Item item_ahead(const IndexView& index, int slice) {
  Item item{};
  int row = row_ahead_of(index, slice), level = 0;
  const AheadRow ahead = index.ahead[row];
  for (; row >= index.levels[level].num_rows; level++) row -= index.levels[level].num_rows;
  const LevelView& of = index.levels[level];
  item.page_begin = of.page_begin[row];
  item.request = ahead.request;
  item.kv_begin = (ahead.first + slice - ahead.begin) * kSlice;
  item.kv_end = ahead.end;
  item.kv_start = of.kv_start[row];
  item.kv_offset = of.kv_offset[row];
  item.level_row = row;
  item.row_kv_len = of.kv_len[row];
  item.level = static_cast<uint8_t>(level);
  return item;
}

template <class S, class V>
ATTNLOOM_DEVICE KeySite<V> key_site_ahead(const RunArgs& args, const IndexView& index, const Item& item, int head) {
  const int request = item.request;
  KeySite<V> site{request, head, 0, item.kv_start + item.row_kv_len, head_scale(args.k_scale, head), 1.0f};
  if (request >= 0) {
    site.qo_len = index.qo_indptr[request + 1] - index.qo_indptr[request];
    site.kv_len = index.kv_len[request];
  }
  return site;
}

struct SharedAhead {
  Slice found[kAheadWarps];
  int noted[kAheadWarps][kSlice];  // listed positions
};

// Which slices there are is known from the plan, not which keys of them some row sees: all are taken whose pages the cache has.
template <class S, class V>
__global__ __launch_bounds__(32 * kAheadWarps, 4) void transform_keys_kernel(
    const __grid_constant__ RunArgs args, const __grid_constant__ typename V::Params params) {
  using Tile = typename S::KTile;
  constexpr int pieces = S::head_dim / 8;
  extern __shared__ __align__(1024) char memory[];
  __shared__ SharedAhead shared;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  const IndexView& index = *args.device_index;
  const int lane = lane_id(), warp = warp_id(), heads = args.num_kv_heads;
  char* const keys = memory + warp * Tile::bytes(kSlice);
  Slice& found = shared.found[warp];
  int* const noted = shared.noted[warp];
  const int slices = index.ahead[index.num_ahead].begin;
#pragma unroll 1
  for (int n = blockIdx.x * kAheadWarps + warp; n < slices * heads; n += gridDim.x * kAheadWarps) {
    const int head = n / slices, slice = n - head * slices;
    const Item item = item_ahead(index, slice);
    const bool listed = Positions::are_listed(index, item);
    const Positions positions{index, item, listed};
    const Source<S> source{args, index, item, head};
    const Trail trail(source, kSlice);
    const int key = item.kv_begin + lane % kSlice;
    Place place;
    place.seek(trail, item, key);
    place.look_up(trail, key < item.kv_end);
    if (place.page >= args.num_pages) place.page = -1;
    place.put_down(source, found);
    positions.note(item.kv_begin, noted);
    __syncwarp();
    copy_rows<Tile, S::head_dim * S::key_bytes, 0>(source.keys(), found, shared_address(keys), first_to_go());
    close_group();
    const KeySite<V> site = key_site_ahead<S, V>(args, index, item, head);
    wait_groups<0>();
    __syncwarp();
    transform_keys<S, V, Tile>(keys, SliceTransforms<V>{params, site, positions, item.kv_begin, noted});
    uint4* const to = static_cast<uint4*>(args.keys_ahead) + (int64_t{head} * slices + slice) * (kSlice * pieces);
#pragma unroll
    for (int i = 0; i < pieces * kSlice / 32; i++) {
      const int at = lane + 32 * i;
      to[at] = *reinterpret_cast<const uint4*>(keys + Tile::at(at / pieces, at % pieces));
    }
    __syncwarp();
  }
}

}  // namespace attnloom::cuda
