// Where some of a block's warps wait for others: barriers by number, and those that lie in shared memory.
#pragma once
#include "instructions.h"

namespace emulation {

// Whoever comes to a barrier and goes on may be overtaken by those who wait there.
inline void go_on() {
  progress++;
  let_others_run();
}

inline void sync_at(int number, int threads) {
  meet_warp(0, "bar.sync");
  if (!ignores("bar.sync")) meet_at(number, threads);
}
inline void arrive_at(int number, int threads) {
  meet_warp(0, "bar.arrive");
  count_at(number, threads);
  go_on();
}

// A barrier in shared memory, as it lies there.
struct MemoryBarrier {
  uint64_t mark : 16;              // kMark: it was initialised
  uint64_t phase : 1;              // that is under way
  uint64_t count : 12, left : 12;  // arrivals that end a phase, and those this one lacks
  int64_t bytes : 23;              // that it lacks; negative: more than were announced have come in
};
static_assert(sizeof(MemoryBarrier) == 8);
constexpr uint16_t kMark = 0xba44;
constexpr int kMostBytes = (1 << 20) - 1;

inline MemoryBarrier& barrier_at(uint32_t address) {
  auto& barrier = *reinterpret_cast<MemoryBarrier*>(place_at(address, sizeof(MemoryBarrier)));
  if (barrier.mark != kMark) fail("uses an mbarrier at %u that was not initialised", address);
  return barrier;
}

inline void init_barrier(uint32_t address, uint32_t count) {
  auto& barrier = *reinterpret_cast<MemoryBarrier*>(place_at(address, sizeof(MemoryBarrier)));
  if (barrier.mark == kMark) fail("initialises the mbarrier at %u again", address);
  if (count == 0 || count > 0xfff) fail("initialises an mbarrier of %u arrivals", count);
  barrier = {kMark, 0, count, count, 0};
}
inline void end_phase_if_complete(MemoryBarrier& barrier) {
  if (barrier.left > 0 || barrier.bytes != 0) return;
  barrier.left = barrier.count;
  barrier.phase ^= 1;
  parted = true;  // others may go on before the rest of this warp
}
// So many bytes are announced; fewer than 0: they have come in.
inline void count_bytes(uint32_t address, int bytes) {
  MemoryBarrier& barrier = barrier_at(address);
  const int64_t all = barrier.bytes + bytes;
  if (all > kMostBytes || all < -kMostBytes) fail("the mbarrier at %u counts too many bytes", address);
  barrier.bytes = all;
  if (bytes < 0) end_phase_if_complete(barrier);
}
inline void arrive_at_barrier(uint32_t address) {
  MemoryBarrier& barrier = barrier_at(address);
  if (barrier.left == 0) fail("arrives at the mbarrier at %u once too often", address);
  barrier.left--;
  end_phase_if_complete(barrier);
  go_on();
}
inline void arrive_before_bytes(uint32_t address, int bytes) {
  count_bytes(address, bytes);
  arrive_at_barrier(address);
}
// Waits for the end of the phase of that parity: of the one under way, or of the one before it, which has ended.
template <class Result>
void wait_for_phase(Result& done, uint32_t address, uint32_t parity) {
  done = 1;
  if (ignores("mbarrier.try_wait")) return;
  if (parity > 1) fail("waits for parity %u", parity);
  const char* what = parity == 0 ? "parity 0 of the mbarrier at" : "parity 1 of the mbarrier at";
  wait_until([&] { return barrier_at(address).phase != parity; }, what, static_cast<int>(address));
}

// Whether it has ended, as of now.
template <class Result>
void has_phase_ended(Result& done, uint32_t address, uint32_t parity) {
  done = barrier_at(address).phase != parity;
}

// How many registers a warp's threads have is not known here.
inline void take_registers(int) { meet_warp(0, "setmaxnreg.inc"); }
inline void give_registers(int) { meet_warp(0, "setmaxnreg.dec"); }

}  // namespace emulation
