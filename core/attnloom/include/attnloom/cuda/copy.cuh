// Asynchronous copies from global to shared memory, 16 bytes a lane, in groups that complete in order.
#pragma once
#include "mma.cuh"

namespace attnloom::cuda {

ATTNLOOM_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Copies 16 bytes, or writes 16 zero bytes and reads nothing.
ATTNLOOM_DEVICE void copy_16(uint32_t to, const void* from, bool exists) {
  asm volatile("{.reg .pred none; setp.eq.s32 none, %2, 0; cp.async.cg.shared.global.L2::128B [%0], [%1], 16, none;}" ::"r"(to),
               "l"(from), "r"(static_cast<int>(exists))
               : "memory");
}

// A policy of the second-level cache: what is read goes before what it has.
ATTNLOOM_DEVICE uint64_t first_to_go() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
ATTNLOOM_DEVICE void copy_16(uint32_t to, const void* from, bool exists, uint64_t policy) {
  asm volatile(
      "{.reg .pred none; setp.eq.s32 none, %2, 0; "
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, none, %3;}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(exists)), "l"(policy)
      : "memory");
}

ATTNLOOM_DEVICE void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this lane's groups are in flight.
template <int N>
ATTNLOOM_DEVICE void wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Waits for the kernel before this one, where this one may begin earlier.
ATTNLOOM_DEVICE void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace attnloom::cuda
