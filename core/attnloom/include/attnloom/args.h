// What a compiled kernel is called with. Plain data, mirrored by ctypes in attnloom/abi.py.
#pragma once
#include <cstdint>

namespace attnloom {

constexpr int32_t kArgsAbi = 6;
constexpr int kMaxLevels = 4;

enum DType : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kE4M3 = 3, kE5M2 = 4 };

struct LevelView {
  const int32_t* row_indptr;
  const int32_t* row_tokens;  // null: contiguous
  const int32_t* kv_len;
  const int32_t* kv_start;
  const int32_t* kv_offset;
  const int64_t* page_begin;
  const void* indices;
  int64_t indices_head_stride;  // elements between the index lists of two kv heads; 0: one list for all
  const int32_t* block_pos;     // null: positions are consecutive
  const uint32_t* mask_bits;    // null: no mask
  const int64_t* mask_begin;
  const int32_t* key_pos;        // null: positions by block_pos or consecutive
  const int64_t* key_pos_begin;  // position of key j of row r: key_pos[key_pos_begin[r] + j]; -1: row has none
  int32_t indices_are_64;
  int32_t num_rows;
};

// Where the keys of a block row lie that are transformed ahead, in slices of 16: from key 16 * `first` on after `begin` other
// slices. Zeros from key `end` on make whole tiles of them.
struct AheadRow {
  int32_t begin;
  int32_t first;
  int32_t end;
  int32_t request;  // -1: query tokens of several requests
};

struct IndexView {
  const int32_t* qo_indptr;
  const int32_t* kv_len;
  const int32_t* token_request;
  const int32_t* q_pos;  // null: kv_len - qo_len + q_index
  int32_t num_requests;
  int32_t num_tokens;
  int32_t page_size;
  int32_t num_levels;
  const AheadRow* ahead;  // of the block rows of all levels, level after level, and an end; null: no keys are transformed ahead
  int64_t num_ahead;      // block rows
  LevelView levels[kMaxLevels];
};

// A cache of [pages, page_size, kv_heads, head_dim], in elements; the last stride is 1.
struct CacheView {
  const void* data;
  int64_t stride_page;
  int64_t stride_slot;
  int64_t stride_head;
};

// A ragged tensor of [tokens, heads, head_dim], in elements; the last stride is 1.
struct RaggedView {
  void* data;
  int64_t stride_token;
  int64_t stride_head;
};

// What cached values are multiplied with when they are read: `number`, or a float32 a kv head, or one for all.
struct Scale {
  const float* values;  // where the kernel runs; null: `number`
  float number;
  int32_t stride;  // 0: one for all heads, else elements from one head's to the next
};

struct RunArgs {
  int32_t abi;
  int32_t num_threads;  // host: OpenMP threads, 0 = its default
  // Expected by the launcher before it fills the views below.
  int32_t num_qo_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t head_dim_v;
  int32_t dtype;  // of q
  int32_t kv_dtype;
  int32_t out_dtype;
  int32_t min_pages;  // pages that the index refers to, at least as many the caches must have; 0: unchecked
  int64_t num_pages;  // pages of the cache given to this run
  RaggedView q;
  CacheView k;
  CacheView v;
  RaggedView out;
  float* lse;  // [tokens, qo_heads], null: not wanted
  int64_t lse_stride_token;
  float sm_scale;
  int32_t q_tokens;  // of the q given to this run
  Scale k_scale;
  Scale v_scale;
  const void* params;  // the composed variant's Params, on the host; a device kernel takes it by value
  const void* plan;    // PlanHeader, where the kernel runs
  float* partial_o;    // [num_part_rows, head_dim_v]
  float* partial_md;   // [num_part_rows, 2]
  void* keys_ahead;    // [kv_heads, slices, 16, head_dim] of q's dtype, for keys that are transformed ahead; null: none are
  IndexView index;     // host addresses
  // Device kernels. What differs from plan to plan they read through device_index and plan alone, whose addresses a
  // captured graph may keep; of `index` they read nothing.
  const IndexView* device_index;  // in device memory, device addresses; null: a host kernel
  int32_t device;                 // index of the CUDA device; a host kernel ignores it
  int32_t spare_rows;             // 1: q, out and lse may have more rows than tokens are planned
  int32_t num_workers;            // of the plan; each is a block
  int32_t merge_pass;             // 1: partial states that no item merges are merged by a second launch
};

}  // namespace attnloom

// Every kernel library exports these, with C linkage:
//   int         attnloom_run(const attnloom::RunArgs*);                     0: done
//   int         attnloom_ranges(const attnloom::RunArgs*, int32_t level, int32_t row, int32_t q_begin, int32_t q_tokens,
//                               int32_t* bounds);                            intervals (0..2) -> bounds[2 * n], of row ordinals
//   const char* attnloom_info();                                             a line that names the build
// A CUDA kernel's attnloom_run takes the stream (cudaStream_t) as a second argument and returns a cudaError_t; it exports
// also:
//   int         attnloom_grid(int device);        workers that the device holds at a time, or a negated cudaError_t
//   const char* attnloom_error(int status);       the name and the text of what attnloom_run returned
