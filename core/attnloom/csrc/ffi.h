// The plumbing of the launcher's functions: arguments in, results out, and errors as Python exceptions. It uses only the C
// ABI of tvm-ffi, which compiles in a second.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#define ATTNLOOM_EXPORT extern "C" __attribute__((visibility("default"))) int

namespace attnloom::ffi {

// An error of the caller: its kind is the name of a Python exception.
struct Failure : std::exception {
  const char* kind;
  std::string text;
  Failure(const char* kind, std::string text) : kind(kind), text(std::move(text)) {}
};

[[noreturn, gnu::format(printf, 2, 3)]] inline void fail(const char* kind, const char* format, ...) {
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

inline void want_arguments(int32_t given, int32_t wanted) {
  if (given != wanted) fail("TypeError", "expected %d arguments, got %d", wanted, given);
}

inline int64_t integer(const TVMFFIAny& value, const char* name) {
  if (value.type_index != kTVMFFIInt) fail("TypeError", "%s must be an integer", name);
  return value.v_int64;
}

inline std::string text(const TVMFFIAny& value, const char* name) {
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

inline const DLTensor* tensor(const TVMFFIAny& value, const char* name) {
  if (value.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(value.v_ptr);
  if (value.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(value.v_obj);
  fail("TypeError", "%s must be a tensor", name);
}

inline void return_integer(TVMFFIAny* result, int64_t value) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = value;
}

inline void return_nothing(TVMFFIAny* result) {
  result->type_index = kTVMFFINone;
  result->zero_padding = 0;
  result->v_int64 = 0;
}

}  // namespace attnloom::ffi
