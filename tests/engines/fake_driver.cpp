// A CUDA driver whose device is the host: copies at once, and says that events are pending as long as it is told to.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int fake_pending = 0, fake_waits = 0, fake_copies = 0, fake_no_memory = 0;
static char context;

EXPORT int cuInit(unsigned) { return 0; }
EXPORT int cuDevicePrimaryCtxRetain(void** out, int device) { return device == 0 ? (*out = &context, 0) : 101; }
EXPORT int cuCtxGetCurrent(void** out) { return *out = nullptr, 0; }
EXPORT int cuCtxPushCurrent_v2(void*) { return 0; }
EXPORT int cuCtxPopCurrent_v2(void**) { return 0; }
EXPORT int cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  return fake_no_memory ? 2 : (*out = std::malloc(bytes), 0);
}
EXPORT int cuMemFreeHost(void* memory) { return std::free(memory), 0; }
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
  ++fake_copies;
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
}
EXPORT int cuEventCreate(void** out, unsigned) { return *out = std::malloc(8), *static_cast<int*>(*out) = 0, 0; }
EXPORT int cuEventRecord(void* event, void*) { return *static_cast<int*>(event) = 1, 0; }
EXPORT int cuEventQuery(void* event) { return *static_cast<int*>(event) && fake_pending ? 600 : 0; }
EXPORT int cuEventSynchronize(void* event) {
  fake_waits += *static_cast<int*>(event);
  return *static_cast<int*>(event) = 0, 0;
}
EXPORT int cuStreamIsCapturing(void*, int* status) { return *status = 0, 0; }
EXPORT int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
EXPORT int cuGetErrorName(int status, const char** out) {
  return *out = status == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_UNKNOWN", 0;
}
