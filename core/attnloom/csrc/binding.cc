// The launcher between Python tensors and compiled kernels. It uses only the C ABI of tvm-ffi, so it compiles in under
// a second, once for all kernels. It checks every tensor against the run's arguments before anything is written.
#include <dlfcn.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <attnloom/args.h>
#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

namespace {

using attnloom::RunArgs;

struct Kernel {
  void* library;
  int (*run)(const RunArgs*);
};

// An error of the caller: its kind is the name of a Python exception.
struct Failure : std::exception {
  const char* kind;
  std::string text;
  Failure(const char* kind, std::string text) : kind(kind), text(std::move(text)) {}
};

[[noreturn, gnu::format(printf, 2, 3)]] void fail(const char* kind, const char* format, ...) {
  char text[1024];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  throw Failure(kind, text);
}

template <class Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const Failure& failure) {
    TVMFFIErrorSetRaisedFromCStr(failure.kind, failure.text.c_str());
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
  }
  return -1;
}

void want_arguments(int32_t given, int32_t wanted) {
  if (given != wanted) fail("TypeError", "expected %d arguments, got %d", wanted, given);
}

int64_t integer(const TVMFFIAny& value, const char* name) {
  if (value.type_index != kTVMFFIInt) fail("TypeError", "%s must be an integer", name);
  return value.v_int64;
}

std::string text(const TVMFFIAny& value, const char* name) {
  if (value.type_index == kTVMFFIRawStr) return value.v_c_str;
  if (value.type_index == kTVMFFISmallStr) {
    const TVMFFIByteArray bytes = TVMFFISmallBytesGetContentByteArray(&value);
    return std::string(bytes.data, bytes.size);
  }
  if (value.type_index == kTVMFFIStr) {
    const TVMFFIByteArray* bytes = TVMFFIBytesGetByteArrayPtr(value.v_obj);
    return std::string(bytes->data, bytes->size);
  }
  fail("TypeError", "%s must be a string", name);
}

const DLTensor* tensor(const TVMFFIAny& value, const char* name) {
  if (value.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(value.v_ptr);
  if (value.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(value.v_obj);
  fail("TypeError", "%s must be a tensor", name);
}

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

void check_kind(const char* name, const DLTensor& given, int ndim, int32_t dtype, const char* axes) {
  if (given.device.device_type != kDLCPU && given.device.device_type != kDLCUDAHost) {
    fail("ValueError", "%s is on a device of DLPack type %d, but the kernel runs on the host: move it with .cpu()", name,
         static_cast<int>(given.device.device_type));
  }
  if (given.ndim != ndim) {
    fail("ValueError", "%s has shape %s, but %d dimensions %s are expected", name,
         shape_text(given.shape, given.ndim).c_str(), ndim, axes);
  }
  if (!has_dtype(given.dtype, dtype)) {
    fail("ValueError", "%s is %s, but the spec says %s", name, dtype_name(given.dtype).c_str(), dtype_name(dtype));
  }
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

void* data(const DLTensor& given) { return static_cast<char*>(given.data) + given.byte_offset; }

void check_ragged(const char* name, const DLTensor& given, const RunArgs& args, int32_t dtype, int32_t head_dim) {
  check_kind(name, given, 3, dtype, "[tokens, heads, head_dim]");
  check_extent(name, given, 0, "tokens", args.index.num_tokens);
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

void fill(RunArgs& args, const DLTensor& q, const DLTensor& k, const DLTensor& v, const DLTensor& out, const DLTensor* lse) {
  if (args.abi != attnloom::kArgsAbi) {
    fail("ValueError", "the arguments have ABI %d, but the launcher was built for %d", args.abi, attnloom::kArgsAbi);
  }
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
    check_extent("lse", *lse, 0, "tokens", args.index.num_tokens);
    check_extent("lse", *lse, 1, "query heads", args.num_qo_heads);
    check_last_stride("lse", *lse);
    check_no_overlap("lse", *lse);
  }
  args.q = ragged_view(q);
  args.k = cache_view(k);
  args.v = cache_view(v);
  args.out = ragged_view(out);
  args.num_pages = k.shape[0];
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
  const auto run = reinterpret_cast<int (*)(const RunArgs*)>(dlsym(library, "attnloom_run"));
  if (run == nullptr) fail("RuntimeError", "%s exports no attnloom_run", path.c_str());
  return opened[path] = new Kernel{library, run};
}

void return_integer(TVMFFIAny* result, int64_t value) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = value;
}

}  // namespace

#define ATTNLOOM_EXPORT extern "C" __attribute__((visibility("default"))) int

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

// run(handle: int, run_args: int, q, k, v, out, lse | None)
ATTNLOOM_EXPORT __tvm_ffi_run(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  return guarded([&] {
    want_arguments(num_args, 7);
    const auto* kernel = reinterpret_cast<const Kernel*>(integer(args[0], "handle"));
    auto* run_args = reinterpret_cast<RunArgs*>(integer(args[1], "run_args"));
    const DLTensor* lse = args[6].type_index == kTVMFFINone ? nullptr : tensor(args[6], "lse");
    fill(*run_args, *tensor(args[2], "q"), *tensor(args[3], "k"), *tensor(args[4], "v"), *tensor(args[5], "out"), lse);
    if (const int status = kernel->run(run_args); status != 0) {
      fail("RuntimeError", "the kernel failed with status %d", status);
    }
    result->type_index = kTVMFFINone;
    result->zero_padding = 0;
    result->v_int64 = 0;
  });
}
