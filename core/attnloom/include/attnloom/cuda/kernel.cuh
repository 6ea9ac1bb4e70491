// The CUDA kernel: a fixed grid whose blocks walk their queues of a plan, and the merge after it.
#pragma once
#include <cuda_runtime.h>

#include <cstdio>

#include "../host/ranges.h"
#include "few_rows.cuh"
#include "keys_ahead.cuh"
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

template <class S, class V>
__global__ __launch_bounds__(S::threads, S::blocks) void attention_kernel(const __grid_constant__ RunArgs args,
                                                                          const __grid_constant__ typename V::Params params) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ Shared<S, V> shared;
  const char* plan = static_cast<const char*>(args.plan);
  // All that is needed to begin is one load away.
  copy_struct(shared.index, args.device_index, 0);
  copy_struct(shared.plan, plan, 32);
  copy_struct(shared.queue, plan + kWorkers + blockIdx.x * sizeof(WorkerQueue), 64);
  close_group();
  if (is_first_thread()) {
    shared.group = args.num_qo_heads / args.num_kv_heads;
    shared.route.step = 0;
  }
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  wait_groups<0>();
  if constexpr (S::keys_ahead) wait_for_kernel_before();
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

template <class S>
constexpr int ahead_bytes() {
  return kAheadWarps * S::KTile::bytes(kSlice);
}

// How many blocks transform keys ahead on a multiprocessor; readies the attention kernel after them too.
template <class S, class V>
cudaError_t find_blocks_ahead(int* blocks) {
  if constexpr (kGoesAhead<S, V>) {
    const cudaError_t status = cudaFuncSetAttribute(attention_kernel<WithKeysAhead<S>, WithoutKeyTransform<V>>,
                                                    cudaFuncAttributeMaxDynamicSharedMemorySize, tile_bytes<S>());
    if (status != cudaSuccess) return status;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, transform_keys_kernel<S, V>, 32 * kAheadWarps, ahead_bytes<S>());
  }
  return cudaSuccess;
}

// How many blocks of each kernel a device holds, and whether a kernel may begin there before the one before it has ended.
struct Grid {
  int status, attention, ahead, merge;
  bool overlaps;
};

template <class S, class V>
Grid find_grid(int device) {
  Grid grid{};
  int now = 0, processors = 0, blocks = 0, ahead = 0, major = 0;
  const auto ok = [&grid](cudaError_t e) { return grid.status == 0 ? (grid.status = e) == cudaSuccess : false; };
  if (!ok(cudaGetDevice(&now)) || !ok(cudaSetDevice(device))) return grid;
  if (ok(cudaFuncSetAttribute(attention_kernel<S, V>, cudaFuncAttributeMaxDynamicSharedMemorySize, tile_bytes<S>())) &&
      ok(find_blocks_ahead<S, V>(&ahead)) && ok(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) &&
      ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) &&
      ok(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, attention_kernel<S, V>, S::threads, tile_bytes<S>()))) {
    if (blocks == 0) grid.status = cudaErrorLaunchOutOfResources;
    grid.attention = processors * blocks;
    grid.ahead = processors * ahead;
    grid.merge = processors * kMergeBlocks;
    grid.overlaps = major >= 9;
  }
  cudaSetDevice(now);
  return grid;
}

constexpr int kMaxDevices = 64;

// The grid of a device, found once.
template <class S, class V>
Grid grid_of(int device) {
  static Grid known[kMaxDevices];
  if (device < 0 || device >= kMaxDevices) return {cudaErrorInvalidDevice};
  if (known[device].attention == 0) known[device] = find_grid<S, V>(device);
  return known[device];
}

// Launches a kernel, which may begin before the one before it has ended where it `overlaps`.
template <class Params>
cudaError_t launch(void (*kernel)(RunArgs, Params), int blocks, int threads, int bytes, cudaStream_t stream, bool overlaps,
                   const RunArgs& args, const Params& params) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute early[1];
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = early;
  config.numAttrs = overlaps ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args, params);
}

template <class S, class V>
cudaError_t launch_attention(const RunArgs& args, const typename V::Params& params, const Grid& grid, cudaStream_t stream) {
  if constexpr (kGoesAhead<S, V>) {
    if (args.keys_ahead != nullptr) {
      const cudaError_t status =
          launch(transform_keys_kernel<S, V>, grid.ahead, 32 * kAheadWarps, ahead_bytes<S>(), stream, false, args, params);
      if (status != cudaSuccess) return status;
      RunArgs after = args;
      after.k = {args.keys_ahead, 0, S::head_dim, 0};
      return launch(attention_kernel<WithKeysAhead<S>, WithoutKeyTransform<V>>, args.num_workers, S::threads, tile_bytes<S>(),
                    stream, grid.overlaps, after, params);
    }
  }
  attention_kernel<S, V><<<args.num_workers, S::threads, tile_bytes<S>(), stream>>>(args, params);
  return cudaGetLastError();
}

template <class Config, class V>
int run(const RunArgs& args, cudaStream_t stream) {
  using S = Shape<Config>;
  if (args.abi != kArgsAbi) return cudaErrorInvalidValue;
  const Grid grid = grid_of<S, V>(args.device);
  if (grid.status) return grid.status;
  int before = args.device;
  if (const cudaError_t e = cudaGetDevice(&before)) return e;
  if (before != args.device)
    if (const cudaError_t e = cudaSetDevice(args.device)) return e;
  const auto& params = *static_cast<const typename V::Params*>(args.params);
  cudaError_t status = launch_attention<S, V>(args, params, grid, stream);
  if (status == cudaSuccess && args.merge_pass != 0)
    status = launch(merge_kernel<S, V>, grid.merge, 32 * kMergeWarps, 0, stream, grid.overlaps, args, params);
  if (before != args.device) cudaSetDevice(before);
  return status;
}

// Workers that the device holds at a time, or a negated error.
template <class Config, class V>
int workers(int device) {
  const Grid grid = grid_of<Shape<Config>, V>(device);
  return grid.status ? -grid.status : grid.attention;
}

inline const char* describe_error(int status) {
  static thread_local char text[256];
  const auto error = static_cast<cudaError_t>(status);
  std::snprintf(text, sizeof text, "%s: %s", cudaGetErrorName(error), cudaGetErrorString(error));
  return text;
}

}  // namespace attnloom::cuda

#define ATTNLOOM_EXPORT extern "C" __attribute__((visibility("default")))

// Defines what every CUDA kernel library exports. INFO: a line that names the build.
#define ATTNLOOM_CUDA_KERNEL(CONFIG, VARIANT, INFO)                                                                    \
  ATTNLOOM_EXPORT int attnloom_run(const attnloom::RunArgs* args, void* stream) {                                      \
    return attnloom::cuda::run<CONFIG, VARIANT>(*args, static_cast<cudaStream_t>(stream));                             \
  }                                                                                                                    \
  ATTNLOOM_EXPORT int attnloom_grid(int device) { return attnloom::cuda::workers<CONFIG, VARIANT>(device); }           \
  ATTNLOOM_EXPORT int attnloom_ranges(const attnloom::RunArgs* args, int32_t level, int32_t row, int32_t q_begin,      \
                                      int32_t q_tokens, int32_t* bounds) {                                             \
    return attnloom::host::ranges<VARIANT>(*args, level, row, q_begin, q_tokens, bounds);                              \
  }                                                                                                                    \
  ATTNLOOM_EXPORT const char* attnloom_error(int status) { return attnloom::cuda::describe_error(status); }            \
  ATTNLOOM_EXPORT const char* attnloom_info() { return INFO; }
