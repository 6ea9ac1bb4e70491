// The maps of a cache by which a kernel copies boxes of it.
#pragma once
#include <cuda_runtime.h>

#include <cstring>

#include "../args.h"
#include "boxes.cuh"

namespace attnloom::cuda {

// Slots of a box: as many as lie in a page wherever it begins, or 0.
inline int box_rows(int page_size, int most) {
  if (page_size >= most) return most;
  int rows = 1;
  while (page_size % (2 * rows) == 0) rows *= 2;
  return rows < 8 ? 0 : rows;
}

// Encodes the map of a tensor of 16-bit elements, the first dimension of which is dense, and tells whether it has one.
inline bool encode(TensorMap& map, const void* data, const int64_t (&sizes)[4], const int64_t (&strides)[3], const uint32_t (&box)[4]) {
  using Encode = int (*)(TensorMap*, int type, uint32_t rank, const void* data, const uint64_t* dims, const uint64_t* strides,
                         const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle, int promotion, int fill);
  static const Encode call = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found) : nullptr;
  }();
  constexpr int kUint16 = 1, kSwizzle128 = 3, kPromote256 = 3;
  uint64_t dims[4], bytes[3];
  for (int i = 0; i < 4; i++) dims[i] = static_cast<uint64_t>(sizes[i]);
  for (int i = 0; i < 3; i++) {
    bytes[i] = sizes[i + 1] > 1 ? 2 * static_cast<uint64_t>(strides[i]) : 16;
    if (bytes[i] == 0 || bytes[i] % 16 != 0 || bytes[i] >> 40 != 0) return false;
  }
  const uint32_t ones[4] = {1, 1, 1, 1};
  return call != nullptr && call(&map, kUint16, 4, data, dims, bytes, box, ones, 0, kSwizzle128, kPromote256, 0) == 0;
}

inline bool encode_cache(TensorMap& map, const CacheView& cache, int elements, int64_t slots, int heads, int64_t pages, int rows) {
  return encode(map, cache.data, {elements, slots, heads, pages}, {cache.stride_slot, cache.stride_head, cache.stride_page},
                {64, static_cast<uint32_t>(rows), 1, 1});
}

// Of queries, `tile` rows at a time.
inline bool encode_queries(TensorMap& map, const RunArgs& args, int tile) {
  const int group = args.num_qo_heads / args.num_kv_heads;
  return tile % group == 0 && args.q_tokens > 0 &&
         encode(map, args.q.data, {args.head_dim, args.num_qo_heads, args.q_tokens, 1}, {args.q.stride_head, args.q.stride_token, 0},
                {64, static_cast<uint32_t>(group), static_cast<uint32_t>(tile / group), 1});
}

// The maps for a run, encoded anew where its tensors are others than the last on this thread.
inline const BoxMaps& maps_of(const RunArgs& args, int t_q, int most) {
  struct Key {
    RaggedView q;
    CacheView k, v;
    int64_t num_pages;
    void* keys_ahead;
    int32_t page_size, num_qo_heads, num_kv_heads, head_dim, head_dim_v, q_tokens, t_q, most, device;
  };
  static thread_local Key last{};
  static thread_local BoxMaps maps{};
  Key key;
  std::memset(&key, 0, sizeof key);
  key.q = args.q, key.k = args.k, key.v = args.v, key.num_pages = args.num_pages, key.keys_ahead = args.keys_ahead;
  key.page_size = args.index.page_size, key.num_qo_heads = args.num_qo_heads, key.num_kv_heads = args.num_kv_heads;
  key.head_dim = args.head_dim, key.head_dim_v = args.head_dim_v, key.q_tokens = args.q_tokens;
  key.t_q = t_q, key.most = most, key.device = args.device;
  if (std::memcmp(&key, &last, sizeof key) == 0) return maps;
  last = key;
  maps = {};
  maps.queries = encode_queries(maps.q, args, t_q);
  const int rows = box_rows(key.page_size, most);
  if (rows == 0) return maps;
  // Keys that were transformed ahead follow each other, as slots of one page and one head would.
  const CacheView ahead{args.keys_ahead, 0, args.head_dim, 0};
  const bool found =
      (args.keys_ahead ? encode_cache(maps.k, ahead, args.head_dim, 1ll << 31, 1, 1, most)
                       : encode_cache(maps.k, args.k, args.head_dim, key.page_size, args.num_kv_heads, args.num_pages, rows)) &&
      encode_cache(maps.v, args.v, args.head_dim_v, key.page_size, args.num_kv_heads, args.num_pages, rows);
  maps.rows = found ? rows : 0;
  maps.page_size = key.page_size;
  return maps;
}

}  // namespace attnloom::cuda
