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
  int which;                              // of those it may wait for; -1: there is one
  std::vector<std::vector<Copy>> groups;  // in flight; the last one is open
};

// Where the lanes of a warp meet, one meeting after the other: each brings 64 bytes at most.
struct Meeting {
  const char* what;
  int arrived;
  unsigned held;
  alignas(16) char brought[2][32 * 64];
};

// Where some of the threads of a block meet again and again.
struct Barrier {
  int arrived, threads;
  unsigned held;
};

// A block that is under way.
struct Block {
  int slot, number;
  std::vector<Thread> threads;
  std::vector<Meeting> meetings;       // of each warp
  Barrier barriers[16];                // the first is that of all threads
  int live;                            // threads that have not ended
  // Of each warp, and of what copies boxes: how often it runs; 0 until something happens.
  std::vector<unsigned> haste, ready;
};

// Knuth's linear congruential numbers, of which the upper bits are random.
struct Dice {
  uint64_t state = 0;

  unsigned below(unsigned count) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>((state >> 32) * count >> 32);
  }
};
inline Dice dice;

inline unsigned draw_haste() { return 1 << 3 * dice.below(4); }

inline Block* block;   // of the thread that runs
inline int current;    // that thread
inline long progress;  // grows whenever somebody who waits may go on
inline bool parted;    // the lanes of the warp that runs have to wait for its next turn
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
void wait_until(Done done, const char* what, int which = -1) {
  me().waits_for = what, me().which = which;
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

// Comes to barrier `number`, where `threads` meet, and returns how often they have met.
inline unsigned count_at(int number, int threads) {
  if (number < 0 || number > 15) fail("comes to barrier %d", number);
  if (threads <= 0 || threads % 32 != 0) fail("comes to a barrier of %d threads", threads);
  Barrier& barrier = block->barriers[number];
  const unsigned held = barrier.held;
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads)
    fail("comes to barrier %d of %d threads while it is one of %d", number, threads, barrier.threads);
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    barrier.held++;
    progress++;
  }
  return held;
}
inline void meet_at(int number, int threads) {
  const unsigned held = count_at(number, threads);
  const Barrier& barrier = block->barriers[number];
  wait_until([&] { return barrier.held != held; }, "barrier", number);
}
inline void meet_block() { meet_at(0, static_cast<int>(block->threads.size())); }

}  // namespace emulation
