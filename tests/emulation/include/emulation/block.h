// A block of threads on one CPU thread: fibers that take turns wherever they wait, in an order drawn from a seed. Shared
// memory begins as NaN.
#pragma once
#include <setjmp.h>
#include <signal.h>
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

constexpr int kStack = 512 << 10;
constexpr int kStaticAt = 228 << 10, kSharedBytes = 256 << 10;  // dynamic shared memory lies below static
constexpr int kPiece = 16;                                      // bytes that a copy moves
constexpr char kPoison = -1;                                    // of NaN, in every dtype

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
  const char* waits_for;
  std::vector<std::vector<Copy>> groups;  // in flight; the last one is open
};

// Knuth's linear congruential numbers, of which the upper bits are random.
struct Dice {
  uint64_t state = 0;

  unsigned below(unsigned count) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>((state >> 32) * count >> 32);
  }
};

// Where the lanes of a warp meet, one meeting after the other: each brings 64 bytes at most.
struct Meeting {
  const char* what;
  int arrived;
  unsigned held;
  alignas(16) char brought[2][32][64];
};

alignas(1024) inline char shared[kSharedBytes];
inline int dynamic_bytes, static_bytes;
inline std::vector<Thread> threads;
inline std::vector<Meeting> meetings;  // of each warp
inline int at_barrier;
inline unsigned barriers;
inline int live;       // threads that have not ended
inline long progress;  // grows whenever somebody who waits may go on
inline int current;
inline jmp_buf scheduler;
inline Dice dice;
inline char error[400];  // empty: none

inline Thread& me() { return threads[current]; }
inline int warp() { return current / 32; }

[[noreturn]] inline void back_to_scheduler() { _longjmp(scheduler, 1); }

// Gives the run up.
[[noreturn, gnu::format(printf, 1, 2)]] inline void fail(const char* format, ...) {
  const int begin = std::snprintf(error, sizeof error, "thread %d of block %u: ", current, blockIdx.x);
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

// All lanes of the warp come here together; the last to come does `act(all)`, and each gets what all brought, which stays
// until the meeting after the next.
template <class T, class Act>
const T* meet_warp(const T& mine, const char* what, Act act) {
  static_assert(sizeof(T) <= 64 && std::is_trivially_copyable_v<T>);
  Meeting& meeting = meetings[warp()];
  const unsigned held = meeting.held;
  auto& brought = meeting.brought[held % 2];
  if (meeting.arrived == 0) meeting.what = what;
  if (std::strcmp(meeting.what, what) != 0) fail("comes to %s while others of its warp are at %s", what, meeting.what);
  // Lanes one after the other, 64 bytes or fewer each.
  std::memcpy(brought[0] + sizeof(T) * (current % 32), &mine, sizeof(T));
  const T* all = reinterpret_cast<const T*>(brought[0]);
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
  const unsigned before = barriers;
  if (++at_barrier == static_cast<int>(threads.size())) {
    at_barrier = 0;
    barriers++;
    progress++;
  } else {
    wait_until([&] { return barriers != before; }, "__syncthreads");
  }
}

// ---------------------------------------------------------------------------------------------------------- memory

struct Region {
  uint64_t address, bytes;
};
inline std::vector<Region> regions;  // of global memory that kernels may read

inline void check_global(const void* from, size_t bytes) {
  const auto at = reinterpret_cast<uint64_t>(from);
  for (const Region& region : regions)
    if (region.address <= at && at + bytes <= region.address + region.bytes) return;
  fail("reads %zu bytes outside all tensors", bytes);
}

// The address in shared memory of what lies there.
inline uint32_t shared_address(const void* p) {
  const auto offset = static_cast<const char*>(p) - shared;
  if (offset < 0 || offset >= kSharedBytes) fail("takes an address outside shared memory for one inside");
  return static_cast<uint32_t>(offset);
}
inline char* in_shared(uint32_t address, uint32_t bytes) {
  const int64_t end = int64_t{address} + bytes;
  if (address % kPiece != 0) fail("address %u of shared memory is not aligned", address);
  if (end > dynamic_bytes && (address < kStaticAt || end > kStaticAt + static_bytes))
    fail("address %u is past the block's shared memory", address);
  return shared + address;
}

inline char* dynamic_shared() { return shared; }
template <class T>
T& static_shared() {
  static_assert(sizeof(T) <= kSharedBytes - kStaticAt);
  static_bytes = sizeof(T);
  return *reinterpret_cast<T*>(shared + kStaticAt);
}

// ------------------------------------------------------------------------------------------------------- scheduling

inline void (*body)();

inline void run_thread() {
  body();
  for (const auto& group : me().groups)
    if (!group.empty()) fail("ends while copies of it are in flight");
  me().done = true;
  live--;
  progress++;
  back_to_scheduler();
}

[[gnu::noinline]] inline void resume(int thread) {
  current = thread;
  threadIdx.x = thread;
  if (_setjmp(scheduler) != 0) return;
  if (me().started) _longjmp(me().place, 1);
  me().started = true;
  setcontext(&me().start);
}

inline void begin_block(int block, int count) {
  blockIdx.x = block;
  std::memset(shared, kPoison, dynamic_bytes);
  std::memset(shared + kStaticAt, kPoison, kSharedBytes - kStaticAt);
  at_barrier = 0;
  threads.resize(count);
  meetings.resize(count / 32);
  for (Meeting& meeting : meetings) meeting.arrived = 0;
  for (Thread& thread : threads) {
    if (!thread.stack) thread.stack = std::make_unique<char[]>(kStack);
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = thread.stack.get();
    thread.start.uc_stack.ss_size = kStack;
    makecontext(&thread.start, run_thread, 0);
    thread.started = thread.done = false;
    thread.waits_for = "nothing";
    thread.groups.assign(1, {});
  }
  live = count;
}

// While one lives, an access to memory that is not there gives the run up.
class FaultGuard {
 public:
  FaultGuard() {
    struct sigaction mine {};
    mine.sa_handler = [](int) { fail("reads or writes memory that is not there"); };
    mine.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &mine, &before_);
  }
  ~FaultGuard() { sigaction(SIGSEGV, &before_, nullptr); }

 private:
  struct sigaction before_;
};

// One of those whose weight is not 0, or -1.
inline int draw(const std::vector<unsigned>& weights) {
  unsigned sum = 0;
  for (const unsigned weight : weights) sum += weight;
  if (sum == 0) return -1;
  unsigned left = dice.below(sum);
  int one = 0;
  while (left >= weights[one]) left -= weights[one++];
  return one;
}

// A warp at a time, each as far as it comes: some are quick throughout a block, others slow. False: `error` says why not.
inline bool run_block(int block, int count, void (*run)()) {
  const FaultGuard guard;
  body = run;
  begin_block(block, count);
  const int warps = count / 32;
  std::vector<unsigned> haste(warps);
  for (unsigned& one : haste) one = 1 << 3 * dice.below(3);
  std::vector<unsigned> ready = haste;  // 0: cannot go on before something happens
  while (live > 0) {
    const int warp = draw(ready);
    if (warp < 0) {
      for (current = 0; me().done;) current++;
      std::snprintf(error, sizeof error, "block %d does not end: thread %d waits for %s", block, current, me().waits_for);
      return false;
    }
    const long before = progress;
    const unsigned first = dice.below(32);
    for (unsigned i = 0; i < 32; i++) {
      const int thread = 32 * warp + (first + 5 * i) % 32;
      if (!threads[thread].done) resume(thread);
      if (error[0] != 0) return false;
    }
    if (progress != before) ready = haste;
    else ready[warp] = 0;
  }
  return true;
}

}  // namespace emulation
