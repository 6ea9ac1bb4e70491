// Who runs next: some blocks are under way at a time, and of their warps any may run, as far as it comes.
#pragma once
#include <signal.h>

#include "memory.h"
#include "products.h"

namespace emulation {

constexpr int kStack = 256 << 10;

// Knuth's linear congruential numbers, of which the upper bits are random.
struct Dice {
  uint64_t state = 0;

  unsigned below(unsigned count) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>((state >> 32) * count >> 32);
  }
};
inline Dice dice;

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

inline Block blocks[kResident];
inline void (*body)();

inline void run_thread() {
  body();
  for (const auto& group : me().groups)
    if (!group.empty()) fail("ends while copies of it are in flight");
  me().done = true;
  block->live--;
  progress++;
  back_to_scheduler();
}

[[gnu::noinline]] inline void resume(Block& of, int thread) {
  block = &of, current = thread;
  blockIdx.x = of.number, threadIdx.x = thread;
  if (_setjmp(scheduler) != 0) return;
  if (me().started) _longjmp(me().place, 1);
  me().started = true;
  setcontext(&me().start);
}

inline void begin_block(int slot, int number, int count) {
  Block& of = blocks[slot];
  of.slot = slot, of.number = number, of.at_barrier = 0, of.live = count;
  poison_shared(slot);
  forget_products(slot, count / 32);
  of.threads.resize(count);
  for (Thread& thread : of.threads) {
    if (!thread.stack) thread.stack.reset(new char[kStack]);
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = thread.stack.get();
    thread.start.uc_stack.ss_size = kStack;
    makecontext(&thread.start, run_thread, 0);
    thread.started = thread.done = thread.waited = false;
    thread.waits_for = "nothing";
    thread.groups.assign(1, {});
  }
  of.meetings.resize(count / 32);
  for (Meeting& meeting : of.meetings) meeting.arrived = 0;
  of.haste.resize(count / 32);
  for (unsigned& one : of.haste) one = 1 << 3 * dice.below(4);  // some are quick throughout, others slow
  of.ready = of.haste;
}

// Runs a warp as far as it comes, its lanes in any order.
inline void run_warp(Block& of, int warp) {
  const long before = progress;
  const unsigned first = dice.below(32);
  for (unsigned i = 0; i < 32 && error[0] == 0; i++) {
    const int thread = 32 * warp + (first + 5 * i) % 32;
    if (!of.threads[thread].done) resume(of, thread);
  }
  if (progress != before) of.ready = of.haste;
  else of.ready[warp] = 0;
}

// A warp that is ready, of a block that is under way; none: nobody is.
inline bool draw(Block*& of, int& warp) {
  unsigned sum = 0;
  for (const Block& one : blocks)
    for (const unsigned weight : one.ready) sum += one.live > 0 ? weight : 0;
  if (sum == 0) return false;
  unsigned left = dice.below(sum);
  for (Block& one : blocks)
    for (warp = 0; one.live > 0 && warp < static_cast<int>(one.ready.size()); warp++) {
      of = &one;
      if (left < one.ready[warp]) return true;
      left -= one.ready[warp];
    }
  return false;
}

// Runs a grid; `error` says why it has not ended.
inline void run_grid(const std::vector<int>& order, int count, void (*run)()) {
  const FaultGuard guard;
  body = run;
  for (Block& one : blocks) one.live = 0;
  size_t next = 0;
  for (;;) {
    int alive = 0;
    for (int slot = 0; slot < kResident; slot++) {
      if (blocks[slot].live == 0 && next < order.size()) begin_block(slot, order[next++], count);
      alive += blocks[slot].live;
    }
    if (alive == 0) return;
    int warp;
    if (draw(block, warp)) {
      run_warp(*block, warp);
    } else {
      block = std::find_if(blocks, blocks + kResident, [](const Block& one) { return one.live > 0; });
      for (current = 0; me().done;) current++;
      std::snprintf(error, sizeof error, "block %d does not end: thread %d waits for %s", block->number, current,
                    me().waits_for);
    }
    if (error[0] != 0) return;
  }
}

}  // namespace emulation
