// Writes new rows of K and V into the slots of a cache, converted on the way. Mirrored by engines/append.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstdio>

#include <attnloom/args.h>

namespace {

using attnloom::DType;

// One of K and V; strides in elements, the last 1.
struct Part {
  const void* rows;  // [tokens, heads, dim]
  int64_t rows_token, rows_head;
  void* cache;  // [pages, page_size, heads, dim]
  int64_t cache_page, cache_slot, cache_head;
  const float* scale;  // what cached values are multiplied with when read; null: 1
  int32_t scale_stride;
  int32_t rows_dtype, cache_dtype;
  int32_t dim;
};

struct AppendArgs {
  Part parts[2];
  const void* slots;  // one a token; negative: the token is skipped
  int64_t capacity;   // slots of the cache
  int32_t slots_are_64;
  int32_t tokens, heads, page_size;
};

__device__ float load(const void* data, int64_t at, int32_t dtype) {
  switch (dtype) {
    case attnloom::kF32: return static_cast<const float*>(data)[at];
    case attnloom::kF16: return __half2float(static_cast<const __half*>(data)[at]);
    default: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
  }
}

__device__ void store(void* data, int64_t at, int32_t dtype, float x) {
  switch (dtype) {
    case attnloom::kF32: static_cast<float*>(data)[at] = x; break;
    case attnloom::kF16: static_cast<__half*>(data)[at] = __float2half_rn(x); break;
    case attnloom::kBF16: static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(x); break;
    case attnloom::kE4M3: static_cast<uint8_t*>(data)[at] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); break;
    default: static_cast<uint8_t*>(data)[at] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2); break;
  }
}

__global__ void append(const __grid_constant__ AppendArgs args) {
  const Part& part = args.parts[blockIdx.y];
  const int token = static_cast<int>(blockIdx.x);
  const int64_t slot = args.slots_are_64 ? static_cast<const int64_t*>(args.slots)[token]
                                         : static_cast<const int32_t*>(args.slots)[token];
  if (slot < 0) return;
  if (slot >= args.capacity) {
    if (threadIdx.x == 0) printf("attnloom.append_kv: slot %lld of a cache of %lld\n", (long long)slot, (long long)args.capacity);
    __trap();
  }
  const int64_t place = slot / args.page_size * part.cache_page + slot % args.page_size * part.cache_slot;
  for (int i = threadIdx.x; i < args.heads * part.dim; i += blockDim.x) {
    const int head = i / part.dim, d = i % part.dim;
    float x = load(part.rows, token * part.rows_token + head * part.rows_head + d, part.rows_dtype);
    if (part.scale != nullptr) x /= part.scale[head * part.scale_stride];
    store(part.cache, place + head * part.cache_head + d, part.cache_dtype, x);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int attnloom_append(const AppendArgs* args, void* stream) {
  if (args->tokens == 0) return 0;
  append<<<dim3(args->tokens, 2), 256, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  return cudaGetLastError();
}
