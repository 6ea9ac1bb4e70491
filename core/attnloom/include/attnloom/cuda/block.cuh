// A block that walks its queue of a plan, all warps doing everything.
#pragma once
#include "few_rows.cuh"
#include "many_rows.cuh"
#include "merge.cuh"
#include "wgmma_rows.cuh"

namespace attnloom::cuda {

template <class S, class V>
struct Shared {
  using R = Rows<V, S::max_t_q>;
  alignas(16) IndexView index;
  alignas(16) PlanHeader plan;
  alignas(16) WorkerQueue queue;  // `first` is the item at hand
  alignas(16) Item next;
  R rows;
  Facts<V> facts;
  Merging merging;
  int head, count, group;  // of the unit at hand: kv head, packed rows; query heads a kv head
  Route route;
  Seen<R::slots> seen[S::warps][4];
  Slice found[S::warps][S::larger(2, (S::max_t_kv / kSlice + S::warps - 1) / S::warps)];
  int noted[S::larger(S::warps * S::stages * S::slices * kSlice, 2 * S::max_t_kv)];
};

// Where the scheduler puts the queues: known before the header has come in.
constexpr int kWorkers = (sizeof(PlanHeader) + kPlanAlign - 1) / kPlanAlign * kPlanAlign;

template <class S>
constexpr int tile_bytes() {
  return S::larger(Class<S, 0>::bytes, Class<S, 1>::bytes);
}

// Asks for a structure that every block or worker needs, 16 bytes a thread from `first_thread` on.
template <class T>
ATTNLOOM_DEVICE void copy_struct(T& to, const void* from, int first_thread) {
  static_assert(sizeof(T) % 16 == 0);
  const int i = static_cast<int>(threadIdx.x) - first_thread;
  if (0 <= i && i < static_cast<int>(sizeof(T) / 16)) copy_16(shared_address(&to) + 16 * i, static_cast<const char*>(from) + 16 * i, true);
}

// Asks for the item after the one at hand, if the worker has one.
template <class S, class V>
ATTNLOOM_DEVICE void ask_item(const RunArgs& args, Shared<S, V>& shared) {
  const char* plan = static_cast<const char*>(args.plan);
  const WorkerQueue& queue = shared.queue;
  if (queue.next < queue.end) copy_struct(shared.next, reinterpret_cast<const Item*>(plan + shared.plan.items) + queue.next, 96);
  close_group();
}
// Makes it the one at hand, by one thread.
template <class S, class V>
ATTNLOOM_DEVICE void take_item(Shared<S, V>& shared) {
  shared.queue.first = shared.next;
  shared.queue.next++;
}
// Goes to the first unit of the item at hand, by one thread.
template <class S, class V>
ATTNLOOM_DEVICE void enter_item(Shared<S, V>& shared) {
  shared.head = shared.queue.first.head0;
  shared.count = shared.queue.first.q_tokens * shared.group;
}

// Goes to the worker's next unit, if it has one of tile class C, and tells.
template <int C, class S, class V>
struct Onward {
  const RunArgs& args;
  Shared<S, V>& shared;

  ATTNLOOM_DEVICE bool operator()() const {
    const WorkerQueue& queue = shared.queue;
    const bool same_item = shared.head + 1 < queue.first.head0 + queue.first.heads;
    if (!same_item && queue.next >= queue.end) return false;
    if (!same_item) wait_groups<0>();
    __syncthreads();
    if (!same_item && !S::one_class && shared.next.tile_class != C) return false;
    if (is_first_thread()) {
      if (same_item) {
        shared.head++;
      } else {
        take_item(shared);
        enter_item(shared);
      }
    }
    __syncthreads();
    if (!same_item) ask_item(args, shared);
    return true;
  }
};

// Runs a unit of tile class C, and perhaps some that follow it.
template <int C, class S, class V, class R>
ATTNLOOM_DEVICE void run_unit(const Unit<S, V, R>& unit, Shared<S, V>& shared, char* memory) {
  using Tile = Class<S, C>;
  const int warp = warp_id();
  if constexpr (Tile::split_keys) FewRows<S, V, C, R>{unit, memory, shared.noted, shared.found[warp]}.run();
  else if constexpr (Tile::wgmma)
    WgmmaRows<S, V, C, R>{unit, memory, shared.noted, shared.route, shared.found[warp], shared.seen[warp]}.run(
        Onward<C, S, V>{unit.args, shared});
  else ManyRows<S, V, C, R>{unit, memory, shared.noted, shared.route, shared.found[warp], shared.seen[warp]}.run();
}

// Runs the units of the item at hand, a kv head each.
template <class S, class V>
ATTNLOOM_DEVICE void run_item(const RunArgs& args, const typename V::Params& params, Shared<S, V>& shared, char* memory) {
  const Item& item = shared.queue.first;
  const Unit<S, V, typename Shared<S, V>::R> unit{
      args,         params,         shared.index, shared.plan,  item,        shared.rows,
      shared.facts, shared.merging, shared.head,  shared.count, shared.group};
  if (is_first_thread()) enter_item(shared);
  for (;;) {
    __syncthreads();
    if (S::one_class || item.tile_class == 0) run_unit<0>(unit, shared, memory);
    else run_unit<1>(unit, shared, memory);
    if (unit.merges()) merge_if_last(unit);
    __syncthreads();
    if (shared.head + 1 == item.head0 + item.heads) return;
    __syncthreads();
    if (is_first_thread()) shared.head++;
  }
}

// Asks for what a block needs to begin, and waits for it: all is one load away.
template <class S, class Shared>
ATTNLOOM_DEVICE void begin_block(const RunArgs& args, Shared& shared) {
  const char* plan = static_cast<const char*>(args.plan);
  copy_struct(shared.index, args.device_index, 0);
  copy_struct(shared.plan, plan, 32);
  copy_struct(shared.queue, plan + kWorkers + blockIdx.x * sizeof(WorkerQueue), 64);
  close_group();
  if (is_first_thread()) shared.group = args.num_qo_heads / args.num_kv_heads;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  wait_groups<0>();
  if constexpr (S::keys_ahead) wait_for_kernel_before();
}

// All warps do everything.
template <class S, class V>
ATTNLOOM_DEVICE void run_block(const RunArgs& args, const typename V::Params& params, char* memory) {
  __shared__ Shared<S, V> shared;
  if (is_first_thread()) shared.route.step = 0;
  begin_block<S>(args, shared);
  __syncthreads();
  const WorkerQueue& queue = shared.queue;
  for (;;) {
    ask_item(args, shared);  // it comes in while this one runs
    if (queue.first.q_tokens > 0) run_item(args, params, shared, memory);
    if (queue.next >= queue.end) return;
    wait_groups<0>();
    __syncthreads();
    if (is_first_thread()) take_item(shared);
    __syncthreads();
  }
}

}  // namespace attnloom::cuda
