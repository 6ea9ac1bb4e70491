// The CUDA kernel: a fixed grid whose blocks walk their queues of a plan, and the merge after it.
#pragma once
#include <cuda_runtime.h>

#include <cstdio>

#include "../host/ranges.h"
#include "keys_ahead.cuh"
#include "teams.cuh"
#include "tensor_maps.h"

namespace attnloom::cuda {

template <class S, class V>
__global__ __launch_bounds__(S::threads, S::blocks) void attention_kernel(const __grid_constant__ RunArgs args,
                                                                          const __grid_constant__ typename V::Params params,
                                                                          const __grid_constant__ NoMaps) {
  extern __shared__ __align__(1024) char memory[];
  run_block<S, V>(args, params, memory);
}

template <class S, class V>
__global__ __launch_bounds__(S::all_threads, 1) void attention_kernel_of_teams(const __grid_constant__ RunArgs args,
                                                                              const __grid_constant__ typename V::Params params,
                                                                              const __grid_constant__ BoxMaps maps) {
  extern __shared__ __align__(1024) char memory[];
  run_teams<S, V>(args, params, maps, memory);
}

template <class S>
using Maps = std::conditional_t<(S::copiers > 0), BoxMaps, NoMaps>;
template <class S, class V>
using AttentionKernel = void (*)(RunArgs, typename V::Params, Maps<S>);

template <class S, class V>
constexpr AttentionKernel<S, V> kernel_of() {
  if constexpr (S::copiers > 0) return attention_kernel_of_teams<S, V>;
  else return attention_kernel<S, V>;
}
// The attention kernel of keys that were transformed ahead.
template <class S, class V>
constexpr AttentionKernel<S, V> kernel_after() {
  return kernel_of<WithKeysAhead<S>, WithoutKeyTransform<V>>();
}
// That of all others; teams transform no keys themselves.
template <class S, class V>
constexpr AttentionKernel<S, V> kernel_alone() {
  if constexpr (S::copiers > 0 && V::has_key_transform) return kernel_after<S, V>();
  else return kernel_of<S, V>();
}

// Bytes of dynamic shared memory of their blocks.
template <class S, class V>
constexpr int bytes_after() {
  return block_bytes<WithKeysAhead<S>, WithoutKeyTransform<V>>();
}
template <class S, class V>
constexpr int bytes_alone() {
  if constexpr (S::copiers > 0 && V::has_key_transform) return bytes_after<S, V>();
  else return block_bytes<S, V>();
}

template <class S>
constexpr int ahead_bytes() {
  return kAheadWarps * S::KTile::bytes(kSlice);
}

// How many blocks transform keys ahead on a multiprocessor; readies the attention kernel after them too.
template <class S, class V>
cudaError_t find_blocks_ahead(int* blocks) {
  if constexpr (kGoesAhead<S, V>) {
    const cudaError_t status = cudaFuncSetAttribute(kernel_after<S, V>(), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes_after<S, V>());
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
  if (ok(cudaFuncSetAttribute(kernel_alone<S, V>(), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes_alone<S, V>())) &&
      ok(find_blocks_ahead<S, V>(&ahead)) && ok(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) &&
      ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) &&
      ok(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel_alone<S, V>(), S::all_threads, bytes_alone<S, V>()))) {
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
template <class... Args>
cudaError_t launch(void (*kernel)(Args...), int blocks, int threads, int bytes, cudaStream_t stream, bool overlaps,
                   const Args&... args) {
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
  return cudaLaunchKernelEx(&config, kernel, args...);
}

template <class S>
Maps<S> maps_for(const RunArgs& args) {
  if constexpr (S::copiers > 0) return maps_of(args, S::t_q[kTallClass<S>], S::max_t_kv);
  else return NoMaps{};
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
      return launch(kernel_after<S, V>(), args.num_workers, S::all_threads, bytes_after<S, V>(), stream, grid.overlaps, after, params,
                    maps_for<S>(args));
    }
  }
  if (S::copiers > 0 && V::has_key_transform) return cudaErrorInvalidValue;
  return launch(kernel_alone<S, V>(), args.num_workers, S::all_threads, bytes_alone<S, V>(), stream, false, args, params,
                maps_for<S>(args));
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
