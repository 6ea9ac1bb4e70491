// How a function is marked so that one source serves host and device.
#pragma once

#if defined(__CUDACC__)
#define ATTNLOOM_FN __host__ __device__ __forceinline__
#elif defined(ATTNLOOM_DEBUG)
#define ATTNLOOM_FN inline
#else
#define ATTNLOOM_FN inline __attribute__((always_inline))
#endif

// A loop whose iterations are independent.
#if defined(__CUDA_ARCH__)
#define ATTNLOOM_LOOP _Pragma("unroll")
#define ATTNLOOM_SUM_LOOP(total) _Pragma("unroll")
#elif defined(__CUDACC__)
#define ATTNLOOM_LOOP
#define ATTNLOOM_SUM_LOOP(total)
#else
#define ATTNLOOM_PRAGMA(text) _Pragma(#text)
#define ATTNLOOM_LOOP ATTNLOOM_PRAGMA(omp simd)
#define ATTNLOOM_SUM_LOOP(total) ATTNLOOM_PRAGMA(omp simd reduction(+ : total))
#endif
