// Blocks whose threads are fibers on one CPU thread, and where threads wait for one another.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

inline struct {
  unsigned x, y, z;
} threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

// A copy of 16 bytes into shared memory, or of as many zeros.
struct Copy {
  uint32_t to;
  const char* from;
  bool exists;
};

struct Thread {
  ucontext_t start;
  jmp_buf place;
  std::unique_ptr<char[]> stack;
  bool started, done;
  bool waited;                            // for the kernel before
  const char* waits_for;
  std::vector<std::vector<Copy>> groups;  // in flight; the last one is open
};

// Where the lanes of a warp meet, one meeting after the other: each brings 64 bytes at most.
struct Meeting {
  const char* what;
  int arrived;
  unsigned held;
  alignas(16) char brought[2][32 * 64];
};

// A block that is under way.
struct Block {
  int slot, number;
  std::vector<Thread> threads;
  std::vector<Meeting> meetings;       // of each warp
  int at_barrier;
  unsigned barriers;
  int live;                            // threads that have not ended
  std::vector<unsigned> haste, ready;  // of each warp: how often it runs; 0 until something happens
};

inline Block* block;   // of the thread that runs
inline int current;    // that thread
inline long progress;  // grows whenever somebody who waits may go on
inline jmp_buf scheduler;
inline char error[400];  // empty: none

inline Thread& me() { return block->threads[current]; }
inline int warp() { return current / 32; }

[[noreturn]] inline void back_to_scheduler() { _longjmp(scheduler, 1); }

// Gives the run up.
[[noreturn, gnu::format(printf, 1, 2)]] inline void fail(const char* format, ...) {
  const int begin = std::snprintf(error, sizeof error, "thread %d of block %d: ", current, block->number);
  va_list values;
  va_start(values, format);
  std::vsnprintf(error + begin, sizeof error - begin, format, values);
  va_end(values);
  back_to_scheduler();
}

[[gnu::noinline]] inline void let_others_run() {
  if (_setjmp(me().place) == 0) back_to_scheduler();
}

template <class Done>
void wait_until(Done done, const char* what) {
  me().waits_for = what;
  while (!done()) let_others_run();
}

// All lanes of the warp come here together; the last to come does `act(all)`, and each gets what all brought, which
// stays until the meeting after the next.
template <class T, class Act>
const T* meet_warp(const T& mine, const char* what, Act act) {
  static_assert(sizeof(T) <= 64 && std::is_trivially_copyable_v<T>);
  Meeting& meeting = block->meetings[warp()];
  const unsigned held = meeting.held;
  char* brought = meeting.brought[held % 2];
  if (meeting.arrived == 0) meeting.what = what;
  if (std::strcmp(meeting.what, what) != 0) fail("comes to %s while others of its warp are at %s", what, meeting.what);
  std::memcpy(brought + sizeof(T) * (current % 32), &mine, sizeof(T));
  const T* all = reinterpret_cast<const T*>(brought);
  if (++meeting.arrived == 32) {
    meeting.arrived = 0;
    meeting.held++;
    progress++;
    act(all);
  } else {
    wait_until([&] { return meeting.held != held; }, what);
  }
  return all;
}
template <class T>
const T* meet_warp(const T& mine, const char* what) {
  return meet_warp(mine, what, [](const T*) {});
}

inline void meet_block() {
  Block& mine = *block;
  const unsigned before = mine.barriers;
  if (++mine.at_barrier == static_cast<int>(mine.threads.size())) {
    mine.at_barrier = 0;
    mine.barriers++;
    progress++;
  } else {
    wait_until([&] { return mine.barriers != before; }, "__syncthreads");
  }
}

}  // namespace emulation
