// The CUDA runtime: one device, whose blocks begin in an order drawn from a seed.
#pragma once
#include <tuple>

#include "schedule.h"

using cudaStream_t = void*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidDevice = 101,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchFailure = 719
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
constexpr unsigned long long cudaEnableDefault = 0;
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace emulation {

template <class... Params>
void launch(void (*kernel)(Params...), int blocks, int count, int shared_bytes, bool early, const Params&... given) {
  static void (*run)(Params...);
  static const std::tuple<const Params&...>* params;
  const std::tuple<const Params&...> here(given...);
  run = kernel, params = &here;
  gridDim.x = blocks, blockDim.x = count;
  dynamic_bytes = shared_bytes, static_bytes = 0, begins_early = early;
  std::vector<int> order(blocks);
  for (int i = 0; i < blocks; i++) {
    order[i] = i;
    std::swap(order[i], order[dice.below(i + 1)]);
  }
  run_grid(order, count, [] { std::apply(run, *params); });
}

template <class... Params>
auto launcher(void (*kernel)(Params...), int blocks, int count, int shared_bytes, cudaStream_t) {
  return [=](const Params&... given) { launch<Params...>(kernel, blocks, count, shared_bytes, false, given...); };
}

}  // namespace emulation

inline cudaError_t cudaGetLastError() { return emulation::error[0] ? cudaErrorLaunchFailure : cudaSuccess; }
inline const char* cudaGetErrorName(cudaError_t) { return "emulation"; }
inline const char* cudaGetErrorString(cudaError_t) { return emulation::error; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  return *value = what == cudaDevAttrMultiProcessorCount ? 2 : __CUDA_ARCH__ / 100, cudaSuccess;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *found = known ? reinterpret_cast<void*>(emulation::encode_map) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int bytes) {
  return bytes <= emulation::kStaticAt ? cudaSuccess : cudaErrorInvalidValue;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, int) {
  return *blocks = 1, cudaSuccess;
}
template <class... Params>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               const std::type_identity_t<Params>&... given) {
  const bool early = config->numAttrs > 0 && config->attrs[0].val.programmaticStreamSerializationAllowed;
  const auto [blocks, count] = std::pair(config->gridDim.x, config->blockDim.x);
  emulation::launch<Params...>(kernel, blocks, count, config->dynamicSmemBytes, early, given...);
  return cudaGetLastError();
}

#define EMULATION_EXPORT extern "C" __attribute__((visibility("default"), used))

// Bytes of dynamic shared memory that a block of the last kernel had.
EMULATION_EXPORT inline int emulation_dynamic_bytes() { return emulation::dynamic_bytes; }

// What the runs to come are: the seed of their order, what they may read, which instruction does nothing (or null).
EMULATION_EXPORT inline void emulation_prepare(unsigned seed, const emulation::Region* regions, int count,
                                               const char* ignored) {
  emulation::dice.state = seed;
  emulation::error[0] = 0;
  emulation::regions.assign(regions, regions + count);
  std::snprintf(emulation::ignored, sizeof emulation::ignored, "%s", ignored ? ignored : "");
}
