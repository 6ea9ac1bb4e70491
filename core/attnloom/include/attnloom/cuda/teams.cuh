// A block of two teams: some warps find units and copy ahead of those that compute.
#pragma once
#include "block.cuh"
#include "copiers.cuh"
#include "team_rows.cuh"

namespace attnloom::cuda {

template <class S>
constexpr int kTallClass = Class<S, 0>::wgmma ? 0 : 1;

template <class S, class V>
struct SharedByTeams {
  using R = typename Found<S, V>::R;
  alignas(16) IndexView index;
  alignas(16) PlanHeader plan;
  alignas(16) WorkerQueue queue;
  Found<S, V> found[kFound];
  Pipeline<Places<S, V, kTallClass<S>>::kQueries> pipeline;
  Progress<Places<S, V, kTallClass<S>>::kQueries> progress[S::warps];
  typename Copiers<S, V, kTallClass<S>>::Own own;
  int group;
  RowCurve curves[V::may_curve ? S::max_t_q : 1];
  Slice places[S::warps][2];
  int noted[S::larger(S::warps * S::stages * S::slices * kSlice, kNotedTiles * S::max_t_kv)];
};

// Bytes of dynamic shared memory of a block: what its tiles take.
template <class S, class V>
constexpr int block_bytes() {
  if constexpr (S::copiers > 0) return S::larger(tile_bytes<S>(), Places<S, V, kTallClass<S>>::bytes);
  else return tile_bytes<S>();
}

// Runs the units of an item of few rows, a kv head each.
template <class S, class V, class R>
ATTNLOOM_DEVICE void run_short(const Unit<S, V, R>& unit, Found<S, V>& found, char* memory, int* noted, Slice* places) {
  sync<S>();
  if (is_first_thread()) found.head = unit.item.head0, found.count = unit.item.q_tokens * unit.group;
  for (;;) {
    sync<S>();
    FewRows<S, V, 0, R>{unit, memory, noted, places}.run();
    if (unit.merges()) merge_if_last(unit);
    sync<S>();
    if (found.head + 1 == unit.item.head0 + unit.item.heads) return;
    sync<S>();
    if (is_first_thread()) found.head++;
  }
}

// What the copiers have found, those who compute run.
template <class S, class V>
ATTNLOOM_DEVICE void compute(const RunArgs& args, const typename V::Params& params, SharedByTeams<S, V>& shared, char* memory) {
  using R = typename SharedByTeams<S, V>::R;
  using Tall = TeamRows<S, V, kTallClass<S>>;
  auto& pipeline = shared.pipeline;
  Tall::begin_turns();
  for (;;) {
    const Cursor<kFound> at_unit = Tall::own(shared.progress).units;
    pipeline.units.wait_full(at_unit);
    Found<S, V>& found = shared.found[at_unit.place()];
    if (found.work == Work::kEnd) return;
    const Unit<S, V, R> unit{args,        params,        shared.index, shared.plan, found.item,  found.rows,
                             found.facts, found.merging, found.head,   found.count, shared.group};
    if (S::one_class || found.work == Work::kTall) {
      const bool partial = Tall{unit, found, pipeline, shared.noted, {memory}, shared.progress, shared.curves}.run();
      if (partial && unit.merges()) merge_if_last(unit);
    } else if constexpr (!S::one_class) {
      run_short(unit, found, memory, shared.noted, shared.places[warp_id()]);
      publish();  // or boxes might come before what this has written
    }
    arrive(pipeline.units.empty[Tall::own(shared.progress).units.place()]);
    __syncwarp();
    if (lane_id() == 0) Tall::own(shared.progress).units.passed++;
    __syncwarp();
  }
}

// Registers of a thread that computes, and of one that copies; as launched all have 168.
constexpr int kComputeRegisters = 232, kCopierRegisters = 3 * 168 - 2 * kComputeRegisters;

// Some warps copy, and the others compute.
template <class S, class V>
ATTNLOOM_DEVICE void run_teams(const RunArgs& args, const typename V::Params& params, const BoxMaps& maps, char* memory) {
  __shared__ SharedByTeams<S, V> shared;
  using Tall = Places<S, V, kTallClass<S>>;
  static_assert(Tall::kQueries == 1 || Tall::bytes + sizeof shared <= Tall::kShared);
  if (warp_id() < S::warps && lane_id() == 0) shared.progress[warp_id()] = {};
  if (is_first_thread()) {
    for (Found<S, V>& found : shared.found) found.route.step = 0;
    shared.pipeline.make(S::warps);
  }
  if (static_cast<int>(threadIdx.x) == S::threads) prefetch(maps);
  begin_block<S>(args, shared);
  __syncthreads();
  if (warp_id() >= S::warps) {
    give_registers<kCopierRegisters>();
    Copiers<S, V, kTallClass<S>>{args, params, shared.index, shared.plan, shared.queue, shared.group, shared.found,
                                 shared.pipeline, shared.own, shared.noted, {memory}, maps}.run();
  } else {
    take_registers<kComputeRegisters>();
    compute(args, params, shared, memory);
  }
}

}  // namespace attnloom::cuda
