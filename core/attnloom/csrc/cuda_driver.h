// The few functions of the CUDA driver that the launcher calls, looked up at run time: it is built without CUDA.
#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "ffi.h"

namespace attnloom::cuda {

using Context = struct ContextTag*;
using Event = struct EventTag*;
using Stream = void*;
using DeviceAddress = uint64_t;

constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY
constexpr Stream kLegacyStream = nullptr;

struct Driver {
  int (*init)(unsigned);
  int (*retain_primary)(Context*, int);
  int (*current)(Context*);
  int (*push)(Context);
  int (*pop)(Context*);
  int (*host_alloc)(void**, size_t, unsigned);
  int (*host_free)(void*);
  int (*copy_to_device)(DeviceAddress, const void*, size_t, Stream);
  int (*event_create)(Event*, unsigned);
  int (*event_record)(Event, Stream);
  int (*event_query)(Event);
  int (*event_wait)(Event);
  int (*stream_wait)(Stream, Event, unsigned);
  int (*stream_capturing)(Stream, int*);
  int (*error_name)(int, const char**);
};

// The driver; raises where there is none. ATTNLOOM_CUDA_DRIVER names another library, for tests.
inline const Driver& driver() {
  static const Driver loaded = [] {
    const char* named = std::getenv("ATTNLOOM_CUDA_DRIVER");
    const char* name = named != nullptr && *named != 0 ? named : "libcuda.so.1";
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) ffi::fail("RuntimeError", "the CUDA driver cannot be loaded: %s", dlerror());
    const auto find = [&](const char* symbol) {
      void* found = dlsym(library, symbol);
      if (found == nullptr) ffi::fail("RuntimeError", "the CUDA driver %s lacks %s: update it", name, symbol);
      return found;
    };
    Driver d{};
    const auto set = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find(symbol));
    };
    set(d.init, "cuInit");
    set(d.retain_primary, "cuDevicePrimaryCtxRetain");
    set(d.current, "cuCtxGetCurrent");
    set(d.push, "cuCtxPushCurrent_v2");
    set(d.pop, "cuCtxPopCurrent_v2");
    set(d.host_alloc, "cuMemHostAlloc");
    set(d.host_free, "cuMemFreeHost");
    set(d.copy_to_device, "cuMemcpyHtoDAsync_v2");
    set(d.event_create, "cuEventCreate");
    set(d.event_record, "cuEventRecord");
    set(d.event_query, "cuEventQuery");
    set(d.event_wait, "cuEventSynchronize");
    set(d.stream_wait, "cuStreamWaitEvent");
    set(d.stream_capturing, "cuStreamIsCapturing");
    set(d.error_name, "cuGetErrorName");
    d.init(0);
    return d;
  }();
  return loaded;
}

inline void check(int status, const char* what) {
  if (status == 0) return;
  const char* name = nullptr;
  driver().error_name(status, &name);
  ffi::fail("RuntimeError", "%s failed: %s (%d)", what, name == nullptr ? "unknown CUDA error" : name, status);
}

// Whether what is queued on `stream` becomes part of a graph.
inline bool is_captured(Stream stream) {
  int status = 0;
  return driver().stream_capturing(stream, &status) == 0 && status == 1;
}

// The primary context of a device, the one that torch uses too; kept for good.
inline Context primary_context(int device) {
  static Context known[64] = {};
  if (device < 0 || device >= 64) ffi::fail("ValueError", "there is no CUDA device %d", device);
  if (known[device] == nullptr) check(driver().retain_primary(&known[device], device), "opening the CUDA device");
  return known[device];
}

// Makes a device's context the thread's current one for a scope, which costs one look-up where it is already.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    const Context wanted = primary_context(device);
    Context now = nullptr;
    check(driver().current(&now), "asking for the CUDA context");
    if (now == wanted) return;
    check(driver().push(wanted), "entering the CUDA context");
    pushed_ = true;
  }
  ~DeviceGuard() {
    Context ignored;
    if (pushed_) driver().pop(&ignored);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace attnloom::cuda
