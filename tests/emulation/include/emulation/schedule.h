// Who runs next: some blocks are under way at a time, and of their warps any may run, as far as it comes.
#pragma once
#include <signal.h>

#include <string>

#include "barriers.h"
#include "boxes.h"
#include "memory.h"
#include "products.h"

namespace emulation {

constexpr int kStack = 256 << 10;

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
  if (block->live == 0 && !boxes[block->slot].empty()) fail("ends while boxes of it are in flight");
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
  of.slot = slot, of.number = number, of.live = count;
  std::fill(std::begin(of.barriers), std::end(of.barriers), Barrier{});
  poison_shared(slot);
  forget_products(slot, count / 32);
  boxes[slot].clear();
  of.threads.resize(count);
  for (Thread& thread : of.threads) {
    if (!thread.stack) thread.stack.reset(new char[kStack]);
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = thread.stack.get();
    thread.start.uc_stack.ss_size = kStack;
    makecontext(&thread.start, run_thread, 0);
    thread.started = thread.done = thread.waited = false;
    thread.waits_for = "nothing", thread.which = -1;
    thread.groups.assign(1, {});
  }
  of.meetings.resize(count / 32);
  for (Meeting& meeting : of.meetings) meeting.arrived = 0;
  of.haste.resize(count / 32);
  for (unsigned& one : of.haste) one = draw_haste();  // some are quick throughout, others slow
  of.haste.push_back(0);
  of.ready = of.haste;
}

// Copies a box that was asked for.
[[gnu::noinline]] inline void run_engine(Block& of) {
  auto& asked = boxes[of.slot];
  block = &of, current = 0;
  std::swap(asked[dice.below(asked.size())], asked.back());
  if (_setjmp(scheduler) != 0) return;
  finish_box(asked.back());
  asked.pop_back();
  if (asked.empty()) of.haste.back() = 0;
  progress++;
}

// Runs a warp as far as it comes, its lanes in any order.
inline void run_lanes(Block& of, int warp) {
  const unsigned first = dice.below(32);
  parted = false;
  for (unsigned i = 0; i < 32 && !parted && error[0] == 0; i++) {
    const int thread = 32 * warp + (first + 5 * i) % 32;
    if (!of.threads[thread].done) resume(of, thread);
  }
}

// Runs a warp, or what copies boxes, which comes after the last.
inline void run_warp(Block& of, int warp) {
  const long before = progress;
  if (32 * warp < static_cast<int>(of.threads.size())) run_lanes(of, warp);
  else run_engine(of);
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

// What threads wait for, and the first that waits for each.
inline std::string waits_of(const Block& of) {
  std::string all;
  for (size_t thread = 0; thread < of.threads.size(); thread++) {
    const Thread& one = of.threads[thread];
    const std::string which = one.which < 0 ? "" : " " + std::to_string(one.which);
    const std::string what = std::string(" waits for ") + one.waits_for + which + ";";
    if (!one.done && all.find(what) == std::string::npos) all += " thread " + std::to_string(thread) + what;
  }
  return all.substr(1, all.size() - 2);
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
      std::snprintf(error, sizeof error, "block %d does not end: %s", block->number, waits_of(*block).c_str());
    }
    if (error[0] != 0) return;
  }
}

}  // namespace emulation
