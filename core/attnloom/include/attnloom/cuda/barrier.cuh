// Where some warps of a block wait for others: barriers in shared memory, whose phases end once so many have arrived, and the
// numbered barriers of a block.
#pragma once
#include "copy.cuh"

namespace attnloom::cuda {

using Barrier = uint64_t;

// Makes a barrier whose phases end with `count` arrivals, by one thread.
ATTNLOOM_DEVICE void make_barrier(Barrier& barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count) : "memory");
}
// What this thread has done before is known to those who wait for the phase.
ATTNLOOM_DEVICE void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Whether the phase of this parity has ended.
ATTNLOOM_DEVICE bool has_ended(Barrier& barrier, uint32_t parity) {
  int ended;
  asm volatile("{.reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2; selp.b32 %0, 1, 0, done;}"
               : "=r"(ended)
               : "r"(shared_address(&barrier)), "r"(parity)
               : "memory");
  return ended != 0;
}
// The same, after some time if it has not.
ATTNLOOM_DEVICE bool ends_soon(Barrier& barrier, uint32_t parity) {
  int ended;
  asm volatile("{.reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.b32 %0, 1, 0, done;}"
               : "=r"(ended)
               : "r"(shared_address(&barrier)), "r"(parity)
               : "memory");
  return ended != 0;
}
ATTNLOOM_DEVICE void wait(Barrier& barrier, uint32_t parity) {
  while (!ends_soon(barrier, parity)) {
  }
}
// A warp arrives as one.
ATTNLOOM_DEVICE void arrive_by_warp(Barrier& barrier) {
  __syncwarp();
  if (lane_id() == 0) arrive(barrier);
}

// Where somebody is who goes through the places of a ring.
template <int Places>
struct Cursor {
  uint32_t passed = 0;

  ATTNLOOM_DEVICE uint32_t place() const { return passed % Places; }
  // Of the phase in which the place is filled; it was emptied in the one before.
  ATTNLOOM_DEVICE uint32_t parity() const { return passed / Places % 2; }
};

// Places that some warps fill and others empty, all in the same order.
template <int Places>
struct Ring {
  Barrier full[Places], empty[Places];

  ATTNLOOM_DEVICE void make(int filling_warps, int emptying_warps) {
    for (int i = 0; i < Places; i++) make_barrier(full[i], filling_warps), make_barrier(empty[i], emptying_warps);
  }
  ATTNLOOM_DEVICE void wait_full(const Cursor<Places>& at) { wait(full[at.place()], at.parity()); }
  ATTNLOOM_DEVICE void wait_empty(const Cursor<Places>& at) { wait(empty[at.place()], at.parity() ^ 1); }
  ATTNLOOM_DEVICE bool is_empty(const Cursor<Places>& at) { return has_ended(empty[at.place()], at.parity() ^ 1); }
};

// Waits until `threads` have come to a numbered barrier, of whom some may only have said so; 0 is that of `__syncthreads`.
ATTNLOOM_DEVICE void meet(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Says that this thread has come to it, and goes on.
ATTNLOOM_DEVICE void pass(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// The warps of a warpgroup get registers, or give them to others of the block; a thread has N then.
template <int N>
ATTNLOOM_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
ATTNLOOM_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// The threads of S, which are all of a block or one of the teams of which it has two.
template <class S>
ATTNLOOM_DEVICE void sync() {
  if constexpr (S::copiers == 0) __syncthreads();
  else meet(S::team, S::threads);
}
// Of a thread among those of S.
template <class S>
ATTNLOOM_DEVICE int thread_id() {
  if constexpr (S::copiers == 0) return static_cast<int>(threadIdx.x);
  else return here(static_cast<int>(threadIdx.x)) % S::threads;
}
template <class S>
ATTNLOOM_DEVICE int warp_of() { return warp_id() % S::warps; }

}  // namespace attnloom::cuda
