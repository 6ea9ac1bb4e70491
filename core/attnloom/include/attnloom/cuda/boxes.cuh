// Copies of whole boxes of a cache by Hopper's copy engine, which one lane asks for and a barrier counts.
#pragma once
#include "barrier.cuh"

namespace attnloom::cuda {

// How the engine finds its way in a tensor, as the driver encodes it.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// Of K and V: boxes of `rows` slots of a page and 64 elements each; no rows: there are none. Of q: boxes of the query heads of a
// kv head, as many tokens as make a tile; `queries`: whether there are such.
struct BoxMaps {
  TensorMap q, k, v;
  int rows, page_size;
  bool queries;
};
struct NoMaps {};

// Has the maps come near that will be used, by one thread: the first copy by each would wait for it.
ATTNLOOM_DEVICE void prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
ATTNLOOM_DEVICE void prefetch(const BoxMaps& maps) {
  if (maps.queries) prefetch(maps.q);
  if (maps.rows > 0) prefetch(maps.k), prefetch(maps.v);
}

// That so many bytes will come in is part of this thread's arrival.
ATTNLOOM_DEVICE void arrive_before(Barrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
}
// Asks for a box, swizzled as `Blocked` is, by one lane.
ATTNLOOM_DEVICE void copy_box(uint32_t to, const TensorMap& map, int column, int slot, int head, int page, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(column), "r"(slot), "r"(head), "r"(page), "r"(shared_address(&barrier))
      : "memory");
}

}  // namespace attnloom::cuda
