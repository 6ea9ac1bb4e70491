// Global memory, of which kernels read the tensors they are given, and shared memory, which begins as NaN. What the
// asynchronous proxy, through which `wgmma` reads shared memory, knows of it.
#pragma once
#include "block.h"

namespace emulation {

constexpr int kResident = 8;                                    // blocks that are under way at a time
constexpr int kStaticAt = 228 << 10, kSharedBytes = 280 << 10;  // dynamic shared memory lies below static
constexpr int kPiece = 16;                                      // bytes that a copy moves
constexpr char kPoison = -1;                                    // of NaN, in every dtype

struct Region {
  uint64_t address, bytes;
  uint64_t written;  // by kernels, and read by those after them
};
inline std::vector<Region> regions;  // that kernels may read

inline bool begins_early;  // the kernel, before what the one before it writes can be read

inline void check_global(const void* from, size_t bytes) {
  const auto at = reinterpret_cast<uint64_t>(from);
  for (const Region& region : regions) {
    if (at < region.address || region.address + region.bytes < at + bytes) continue;
    if (region.written && begins_early && !me().waited)
      fail("reads before griddepcontrol.wait what the kernel before it writes");
    return;
  }
  fail("reads %zu bytes outside all tensors", bytes);
}

// The shared memory of one block.
struct Shared {
  alignas(1024) char bytes[kSharedBytes];
  char known[kSharedBytes];              // as products may read it
  char copied[kSharedBytes];             // as copies brought it, before anything was stored over it
  int copied_by[kSharedBytes / kPiece];  // the thread whose copy that was
};
inline Shared shared[kResident];
inline int dynamic_bytes, static_bytes;

inline Shared& mine() { return shared[block->slot]; }

inline void poison_shared(int slot) {
  Shared& all = shared[slot];
  for (char* bytes : {all.bytes, all.known, all.copied}) std::memset(bytes, kPoison, kSharedBytes);
  std::fill(std::begin(all.copied_by), std::end(all.copied_by), -1);
}

// The address in shared memory of what lies there.
inline uint32_t shared_address(const void* p) {
  const auto offset = static_cast<const char*>(p) - mine().bytes;
  if (offset < 0 || offset >= kSharedBytes) fail("takes an address outside shared memory for one inside");
  return static_cast<uint32_t>(offset);
}
// Where so many bytes of shared memory lie.
inline char* place_at(uint32_t address, int bytes) {
  const int64_t end = int64_t{address} + bytes;
  if (address % bytes != 0) fail("address %u of shared memory is not aligned", address);
  if (end > dynamic_bytes && (address < kStaticAt || end > kStaticAt + static_bytes))
    fail("address %u is past the block's shared memory", address);
  return mine().bytes + address;
}
inline char* piece_at(uint32_t address) { return place_at(address, kPiece); }

inline char* dynamic_shared() { return mine().bytes; }
template <class T>
T& static_shared() {
  static_assert(sizeof(T) <= kSharedBytes - kStaticAt);
  static_bytes = sizeof(T);
  return *reinterpret_cast<T*>(mine().bytes + kStaticAt);
}

inline void finish_copy(const Copy& copy) {
  char* to = mine().bytes + copy.to;
  if (copy.exists) std::memcpy(to, copy.from, kPiece);
  else std::memset(to, 0, kPiece);
  std::memcpy(mine().copied + copy.to, to, kPiece);
  mine().copied_by[copy.to / kPiece] = current;
}

// A fence makes known what this thread copied, and what was stored since a copy; by whom cannot be told.
inline void make_known() {
  Shared& all = mine();
  for (int at = 0; at < dynamic_bytes; at += kPiece)
    if (all.copied_by[at / kPiece] == current || std::memcmp(all.bytes + at, all.copied + at, kPiece) != 0)
      std::memcpy(all.known + at, all.bytes + at, kPiece);
}

}  // namespace emulation
