// The launcher between Python tensors and compiled kernels. It is compiled once for all
// kernels, and checks every tensor against the run's arguments before anything is written.
#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <attnloom/args.h>

#include "cuda_driver.h"
#include "ffi.h"

namespace {

using attnloom::RunArgs;
using namespace attnloom::ffi;

struct Kernel {
  void* library;
  int (*run)(const RunArgs*);                         // a host kernel's, or
  int (*run_on_device)(const RunArgs*, void* stream);  // a CUDA kernel's
  const char* (*error)(int);
};

// ---------------------------------------------------------------------------------------------------- what is checked

const char* dtype_name(int32_t dtype) {
  static const char* const names[] = {"float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"};
  return dtype >= 0 && dtype < 5 ? names[dtype] : "an unknown dtype";
}

std::string dtype_name(DLDataType dtype) {
  if (dtype.lanes == 1) {
    if (dtype.code == kDLBfloat) return "bfloat16";
    if (dtype.code == kDLFloat8_e4m3fn) return "float8_e4m3fn";
    if (dtype.code == kDLFloat8_e5m2) return "float8_e5m2";
    if (dtype.code == kDLFloat) return "float" + std::to_string(dtype.bits);
    if (dtype.code == kDLInt) return "int" + std::to_string(dtype.bits);
    if (dtype.code == kDLUInt) return "uint" + std::to_string(dtype.bits);
    if (dtype.code == kDLBool) return "bool";
  }
  return "DLPack code " + std::to_string(dtype.code) + ", " + std::to_string(dtype.bits) + " bits, " +
         std::to_string(dtype.lanes) + " lanes";
}

bool has_dtype(DLDataType given, int32_t expected) {
  if (given.lanes != 1) return false;
  const bool is_byte = given.code == kDLUInt && given.bits == 8;  // a float8 tensor that its library cannot export
  switch (expected) {
    case attnloom::kF32: return given.code == kDLFloat && given.bits == 32;
    case attnloom::kF16: return given.code == kDLFloat && given.bits == 16;
    case attnloom::kBF16: return given.code == kDLBfloat && given.bits == 16;
    case attnloom::kE4M3: return given.code == kDLFloat8_e4m3fn || is_byte;
    case attnloom::kE5M2: return given.code == kDLFloat8_e5m2 || is_byte;
    default: return false;
  }
}

std::string shape_text(const int64_t* values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

std::string device_name(DLDevice device) {
  if (device.device_type == kDLCPU || device.device_type == kDLCUDAHost) return "the host";
  if (device.device_type == kDLCUDA) return "cuda:" + std::to_string(device.device_id);
  return "a device of DLPack type " + std::to_string(static_cast<int>(device.device_type));
}

constexpr int kHost = -1;

// `device`: the CUDA device that the kernel runs on, or kHost.
void check_device(const char* name, const DLTensor& given, int device) {
  if (device != kHost) {
    if (given.device.device_type == kDLCUDA && given.device.device_id == device) return;
    fail("ValueError", "%s is on %s, but the kernel runs on cuda:%d: move it with .to('cuda:%d')", name,
         device_name(given.device).c_str(), device, device);
  }
  if (given.device.device_type == kDLCPU || given.device.device_type == kDLCUDAHost) return;
  fail("ValueError", "%s is on %s, but the kernel runs on the host: move it with .cpu()", name,
       device_name(given.device).c_str());
}

// A storage that was freed, or that a fake tensor never had, lies at address 0.
void check_memory(const char* name, const DLTensor& given) {
  if (given.data != nullptr) return;
  for (int i = 0; i < given.ndim; ++i) {
    if (given.shape[i] == 0) return;
  }
  fail("ValueError", "%s of shape %s has no memory: its storage was freed, or it is a fake tensor", name,
       shape_text(given.shape, given.ndim).c_str());
}

void check_kind(const char* name, const DLTensor& given, int ndim, int32_t dtype, const char* axes) {
  if (given.ndim != ndim) {
    fail("ValueError", "%s has shape %s, but %d dimensions %s are expected", name,
         shape_text(given.shape, given.ndim).c_str(), ndim, axes);
  }
  if (!has_dtype(given.dtype, dtype)) {
    fail("ValueError", "%s is %s, but the spec says %s", name, dtype_name(given.dtype).c_str(), dtype_name(dtype));
  }
  check_memory(name, given);
}

void check_extent(const char* name, const DLTensor& given, int axis, const char* what, int64_t expected) {
  if (given.shape[axis] != expected) {
    fail("ValueError", "%s of shape %s has %lld %s, but %lld are planned", name, shape_text(given.shape, given.ndim).c_str(),
         static_cast<long long>(given.shape[axis]), what, static_cast<long long>(expected));
  }
}

// The stride of an axis in elements; an axis of one element has none that matters.
int64_t stride(const DLTensor& given, int axis) {
  if (given.strides != nullptr) return given.shape[axis] == 1 ? 0 : given.strides[axis];
  int64_t product = 1;
  for (int i = given.ndim - 1; i > axis; --i) product *= given.shape[i];
  return product;
}

void check_last_stride(const char* name, const DLTensor& given) {
  const int last = given.ndim - 1;
  if (given.strides == nullptr || given.shape[last] == 1 || given.strides[last] == 1) return;
  for (int i = 0; i < given.ndim; ++i) {
    if (given.shape[i] == 0) return;
  }
  fail("ValueError", "%s has strides %s, but the last must be 1: use .contiguous() or another layout", name,
       shape_text(given.strides, given.ndim).c_str());
}

// Two elements of an output at one address would be a race.
void check_no_overlap(const char* name, const DLTensor& given) {
  if (given.strides == nullptr) return;
  int axes[3] = {0, 1, 2};
  for (int i = 1; i < given.ndim; ++i) {
    for (int j = i; j > 0 && given.strides[axes[j]] < given.strides[axes[j - 1]]; --j) std::swap(axes[j], axes[j - 1]);
  }
  int64_t reach = 1;
  for (int i = 0; i < given.ndim; ++i) {
    const int64_t extent = given.shape[axes[i]];
    if (extent == 0) return;
    if (extent == 1) continue;
    if (given.strides[axes[i]] < reach) {
      fail("ValueError", "%s of shape %s and strides %s overlaps itself: use a tensor of its own, not an expanded one", name,
           shape_text(given.shape, given.ndim).c_str(), shape_text(given.strides, given.ndim).c_str());
    }
    reach = given.strides[axes[i]] * (extent - 1) + reach;
  }
}

// Rows may be left over where buffers are as large as the largest batch.
void check_tokens(const char* name, const DLTensor& given, const RunArgs& args) {
  if (args.spare_rows != 0 && given.shape[0] > args.index.num_tokens) return;
  check_extent(name, given, 0, "tokens", args.index.num_tokens);
}

void* data(const DLTensor& given) { return static_cast<char*>(given.data) + given.byte_offset; }

void check_ragged(const char* name, const DLTensor& given, const RunArgs& args, int32_t dtype, int32_t head_dim) {
  check_kind(name, given, 3, dtype, "[tokens, heads, head_dim]");
  check_tokens(name, given, args);
  check_extent(name, given, 1, "query heads", args.num_qo_heads);
  check_extent(name, given, 2, "elements a head", head_dim);
  check_last_stride(name, given);
}

void check_cache(const char* name, const DLTensor& given, const RunArgs& args, int32_t head_dim) {
  check_kind(name, given, 4, args.kv_dtype, "[pages, page_size, kv_heads, head_dim]");
  check_extent(name, given, 1, "slots a page", args.index.page_size);
  check_extent(name, given, 2, "kv heads", args.num_kv_heads);
  check_extent(name, given, 3, "elements a head", head_dim);
  check_last_stride(name, given);
  if (given.shape[0] < args.min_pages) {
    fail("ValueError", "%s has %lld pages, but the index uses page ids up to %d", name,
         static_cast<long long>(given.shape[0]), args.min_pages - 1);
  }
}

attnloom::RaggedView ragged_view(const DLTensor& given) { return {data(given), stride(given, 0), stride(given, 1)}; }

attnloom::CacheView cache_view(const DLTensor& given) {
  return {data(given), stride(given, 0), stride(given, 1), stride(given, 2)};
}

// CUDA kernels load and store `bytes` at a time.
void check_aligned(const char* name, const DLTensor& given, int64_t bytes) {
  const int64_t size = given.dtype.bits / 8;
  if (reinterpret_cast<uintptr_t>(data(given)) % static_cast<uint64_t>(bytes) != 0) {
    fail("ValueError", "%s begins at an address that is no multiple of %lld bytes, as CUDA kernels need: use .clone()", name,
         static_cast<long long>(bytes));
  }
  for (int i = 0; i + 1 < given.ndim; ++i) {
    if (stride(given, i) * size % bytes != 0) {
      fail("ValueError", "%s has strides %s of %lld bytes an element, but CUDA kernels need multiples of %lld bytes: use "
           ".contiguous()", name, shape_text(given.strides, given.ndim).c_str(), static_cast<long long>(size),
           static_cast<long long>(bytes));
    }
  }
}

// CUDA kernels count 16-byte units between the slots of a cache in 32 bits.
void check_reach(const char* name, const DLTensor& given) {
  int64_t units = 0;
  for (int axis = 0; axis < 2 && given.shape[axis] > 0; ++axis) {
    units += (given.shape[axis] - 1) * stride(given, axis) * (given.dtype.bits / 8) / 16;
  }
  if (units < int64_t{UINT32_MAX}) return;
  fail("ValueError", "%s of shape %s and strides of %lld bytes a page spans more than 64 GiB: CUDA kernels reach no further",
       name, shape_text(given.shape, given.ndim).c_str(),
       static_cast<long long>(stride(given, 0) * (given.dtype.bits / 8)));
}

void fill(RunArgs& args, int device, const DLTensor& q, const DLTensor& k, const DLTensor& v, const DLTensor& out,
          const DLTensor* lse) {
  if (args.abi != attnloom::kArgsAbi) {
    fail("ValueError", "the arguments have ABI %d, but the launcher was built for %d", args.abi, attnloom::kArgsAbi);
  }
  check_device("q", q, device);
  check_device("k", k, device);
  check_device("v", v, device);
  check_device("out", out, device);
  if (lse != nullptr) check_device("lse", *lse, device);
  check_ragged("q", q, args, args.dtype, args.head_dim);
  check_cache("k", k, args, args.head_dim);
  check_cache("v", v, args, args.head_dim_v);
  if (v.shape[0] != k.shape[0]) {
    fail("ValueError", "k has %lld pages, but v has %lld", static_cast<long long>(k.shape[0]),
         static_cast<long long>(v.shape[0]));
  }
  check_ragged("out", out, args, args.out_dtype, args.head_dim_v);
  check_no_overlap("out", out);
  if (lse != nullptr) {
    check_kind("lse", *lse, 2, attnloom::kF32, "[tokens, heads]");
    check_tokens("lse", *lse, args);
    check_extent("lse", *lse, 1, "query heads", args.num_qo_heads);
    check_last_stride("lse", *lse);
    check_no_overlap("lse", *lse);
  }
  if (device != kHost) {
    check_aligned("q", q, 16);
    check_aligned("k", k, 16);
    check_aligned("v", v, 16);
    check_reach("k", k);
    check_reach("v", v);
    check_aligned("out", out, 8);
  }
  args.q = ragged_view(q);
  args.k = cache_view(k);
  args.v = cache_view(v);
  args.out = ragged_view(out);
  args.num_pages = k.shape[0];
  args.q_tokens = static_cast<int32_t>(q.shape[0]);
  args.lse = lse == nullptr ? nullptr : static_cast<float*>(data(*lse));
  args.lse_stride_token = lse == nullptr ? 0 : stride(*lse, 0);
}

Kernel* open_kernel(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, Kernel*> opened;  // never closed: plans and threads may still hold addresses into one
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = opened.find(path); found != opened.end()) return found->second;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail("RuntimeError", "cannot load the kernel: %s", dlerror());
  void* run = dlsym(library, "attnloom_run");
  if (run == nullptr) fail("RuntimeError", "%s exports no attnloom_run", path.c_str());
  auto* kernel = new Kernel{library, nullptr, nullptr, nullptr};
  if (dlsym(library, "attnloom_grid") == nullptr) {
    kernel->run = reinterpret_cast<int (*)(const RunArgs*)>(run);
  } else {
    kernel->run_on_device = reinterpret_cast<int (*)(const RunArgs*, void*)>(run);
    kernel->error = reinterpret_cast<const char* (*)(int)>(dlsym(library, "attnloom_error"));
  }
  return opened[path] = kernel;
}

// CUDA's name and text of an error, as the kernel's own runtime knows it.
[[noreturn]] void fail_on_device(const Kernel& kernel, int device, int status) {
  const char* told = kernel.error == nullptr ? nullptr : kernel.error(status);
  fail("RuntimeError", "the kernel failed on cuda:%d: %s", device,
       told == nullptr ? ("CUDA error " + std::to_string(status)).c_str() : told);
}

}  // namespace

// open_kernel(path: str) -> handle: int
ATTNLOOM_EXPORT __tvm_ffi_open_kernel(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  return guarded([&] {
    want_arguments(num_args, 1);
    return_integer(result, reinterpret_cast<int64_t>(open_kernel(text(args[0], "path"))));
  });
}

// kernel_symbol(handle: int, name: str) -> address: int, 0 if the kernel has no such symbol
ATTNLOOM_EXPORT __tvm_ffi_kernel_symbol(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  return guarded([&] {
    want_arguments(num_args, 2);
    const auto* kernel = reinterpret_cast<const Kernel*>(integer(args[0], "handle"));
    return_integer(result, reinterpret_cast<int64_t>(dlsym(kernel->library, text(args[1], "name").c_str())));
  });
}

// device_workers(handle: int, device: int) -> workers that the device holds at a time
ATTNLOOM_EXPORT __tvm_ffi_device_workers(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  return guarded([&] {
    want_arguments(num_args, 2);
    const auto& kernel = *reinterpret_cast<const Kernel*>(integer(args[0], "handle"));
    const int device = static_cast<int>(integer(args[1], "device"));
    const auto grid = reinterpret_cast<int (*)(int)>(dlsym(kernel.library, "attnloom_grid"));
    if (grid == nullptr) fail("ValueError", "a host kernel has no grid");
    const attnloom::cuda::DeviceGuard guard(device);
    const int workers = grid(device);
    if (workers <= 0) fail_on_device(kernel, device, -workers);
    return_integer(result, workers);
  });
}

// run(handle, run_args: int, q, k, v, out, lse | None, stream: int) -> 1 where the stream is being captured, else 0
ATTNLOOM_EXPORT __tvm_ffi_run(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  return guarded([&] {
    want_arguments(num_args, 8);
    const auto& kernel = *reinterpret_cast<const Kernel*>(integer(args[0], "handle"));
    const bool on_device = kernel.run_on_device != nullptr;
    auto* run_args = reinterpret_cast<RunArgs*>(integer(args[1], "run_args"));
    const DLTensor* lse = args[6].type_index == kTVMFFINone ? nullptr : tensor(args[6], "lse");
    fill(*run_args, on_device ? run_args->device : kHost, *tensor(args[2], "q"), *tensor(args[3], "k"),
         *tensor(args[4], "v"), *tensor(args[5], "out"), lse);
    bool captured = false;
    if (on_device) {
      const attnloom::cuda::DeviceGuard guard(run_args->device);
      void* stream = reinterpret_cast<void*>(integer(args[7], "stream"));
      const int status = kernel.run_on_device(run_args, stream);
      if (status != 0) fail_on_device(kernel, run_args->device, status);
      captured = attnloom::cuda::is_captured(stream);
    } else if (const int status = kernel.run(run_args); status != 0) {
      fail("RuntimeError", "the kernel failed with status %d", status);
    }
    return_integer(result, captured);
  });
}
