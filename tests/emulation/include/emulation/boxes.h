// Copies of boxes of a tensor, as the engine for it makes them: at some turn after they were asked for, in any order.
// Until then their places hold NaN, and may not be written.
#pragma once
#include <algorithm>

#include "barriers.h"

namespace emulation {

constexpr uint32_t kMapMark = 0x7e4507a9;
constexpr int kRowBytes = 128;  // of a box: others are not known here

// A map as the driver encodes it.
struct Map {
  uint32_t mark, box[4];
  const char* data;
  uint64_t sizes[4], strides[3];
};
static_assert(sizeof(Map) <= 128);

// What the driver calls cuTensorMapEncodeTiled, for 16-bit elements in four dimensions. Returns whether it fails.
inline int encode_map(void* to, int type, uint32_t rank, const void* data, const uint64_t* sizes,
                      const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                      int swizzle, int promotion, int fill) {
  constexpr int kUint16 = 1, kSwizzle128 = 3;
  const auto aligned = [](const void* p, int bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  if (type != kUint16 || rank != 4 || swizzle != kSwizzle128 || interleave != 0 || fill != 0) return 1;
  if (promotion < 0 || promotion > 3 || !aligned(to, 64) || !aligned(data, 16) || data == nullptr) return 1;
  Map map{kMapMark, {}, static_cast<const char*>(data), {}, {}};
  for (int i = 0; i < 4; i++) {
    if (sizes[i] == 0 || sizes[i] > 1ull << 32 || box[i] == 0 || box[i] > 256 || steps[i] != 1) return 1;
    map.sizes[i] = sizes[i], map.box[i] = box[i];
  }
  for (int i = 0; i < 3; i++) {
    if (strides[i] % 16 != 0 || strides[i] >> 40 != 0) return 1;
    map.strides[i] = strides[i];
  }
  if (2 * box[0] > kRowBytes || 2 * box[0] % 16 != 0) return 1;
  std::memset(to, 0, 128);
  std::memcpy(to, &map, sizeof map);
  return 0;
}

// A box that was asked for.
struct Box {
  Map map;
  int64_t corner[4];
  uint32_t to, barrier;

  int rows() const { return static_cast<int>(map.box[1] * map.box[2] * map.box[3]); }
  int bytes() const { return rows() * kRowBytes; }
};
inline std::vector<Box> boxes[kResident];  // of each block, in flight

// The elements of a row that are there: from which one of the row on, how many, and where they lie.
struct Row {
  int64_t first, count;
  const char* from;
};
inline Row row_of(const Box& box, int row) {
  const Map& map = box.map;
  int64_t at[4] = {0};
  for (int i = 1; i < 4; i++) {
    at[i] = box.corner[i] + row % map.box[i];
    row /= map.box[i];
    if (at[i] < 0 || static_cast<uint64_t>(at[i]) >= map.sizes[i]) return {0, 0, nullptr};
  }
  const int64_t begin = std::max<int64_t>(box.corner[0], 0);
  const int64_t end = std::min<int64_t>(box.corner[0] + map.box[0], map.sizes[0]);
  const char* from = map.data + 2 * begin;
  for (int i = 1; i < 4; i++) from += at[i] * map.strides[i - 1];
  return {begin - box.corner[0], std::max<int64_t>(end - begin, 0), from};
}

inline void copy_box(uint32_t to, const void* map, int c0, int c1, int c2, int c3, uint32_t barrier) {
  Box box{{}, {c0, c1, c2, c3}, to, barrier};
  std::memcpy(&box.map, map, sizeof box.map);
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0) fail("copies by a map at an address that is not aligned");
  if (box.map.mark != kMapMark) fail("copies by a map that was not encoded");
  if (2 * box.map.box[0] != kRowBytes) fail("copies rows of %u elements, which has no emulation", box.map.box[0]);
  barrier_at(barrier);
  for (int row = 0; row < box.rows(); row++) {
    char* place = place_at(to + row * kRowBytes, kRowBytes);
    const Row from = row_of(box, row);
    if (from.count > 0) check_global(from.from, 2 * from.count);
    if (std::memcmp(place, mine().known + (place - mine().bytes), kRowBytes) != 0)
      fail("asks for a box where something was written that no fence has made known");
    for (char* bytes : {place, mine().known + (place - mine().bytes), mine().copied + (place - mine().bytes)})
      std::memset(bytes, kPoison, kRowBytes);
  }
  boxes[block->slot].push_back(box);
  block->haste.back() = draw_haste();
  progress++;
}

// Copies a box: whoever waits for it and products know of it, without a fence.
inline void finish_box(const Box& box) {
  Shared& all = mine();
  for (int row = 0; row < box.rows(); row++) {
    char bytes[kRowBytes] = {0};
    const Row from = row_of(box, row);
    if (from.count > 0) std::memcpy(bytes + 2 * from.first, from.from, 2 * from.count);
    for (int piece = 0; piece < kRowBytes / kPiece; piece++) {
      const uint32_t line = box.to / kRowBytes + row, to = line * kRowBytes + (piece ^ line % 8) * kPiece;
      if (std::any_of(all.bytes + to, all.bytes + to + kPiece, [](char byte) { return byte != kPoison; }))
        fail("something is written to %u, where a box is to come", to);
      for (char* place : {all.bytes, all.known, all.copied}) std::memcpy(place + to, bytes + piece * kPiece, kPiece);
      all.copied_by[to / kPiece] = -1;
    }
  }
  count_bytes(box.barrier, -box.bytes());
}

}  // namespace emulation
