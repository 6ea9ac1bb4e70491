// A tensor parameter: `p.slopes(head)`. Strides and offsets are 64-bit; ATTNLOOM_DEBUG checks every index.
#pragma once
#include <cstdint>
#if defined(ATTNLOOM_DEBUG)
#include <cstdio>
#include <cstdlib>
#endif

#include "fn.h"
#include "narrow.h"

namespace attnloom {

template <class T, int R>
struct TensorRef {
  const T* data;
  int64_t shape[R];
  int64_t stride[R];  // in elements

  template <class... I>
  ATTNLOOM_FN T operator()(I... index) const {
    static_assert(sizeof...(I) == R, "a tensor parameter takes one index a dimension");
    const int64_t at[R] = {static_cast<int64_t>(index)...};
    const char* place = reinterpret_cast<const char*>(data);
    for (int r = 0; r < R; r++) {
      check(r, at[r]);
      place += at[r] * (stride[r] * static_cast<int64_t>(sizeof(T)));
    }
    return *reinterpret_cast<const T*>(place);
  }

 private:
  ATTNLOOM_FN void check([[maybe_unused]] int dim, [[maybe_unused]] int64_t index) const {
#if defined(ATTNLOOM_DEBUG) && !defined(__CUDA_ARCH__)
    if (index >= 0 && index < shape[dim]) return;
    std::fprintf(stderr, "attnloom: tensor parameter: index %lld is outside dimension %d of size %lld\n",
                 static_cast<long long>(index), dim, static_cast<long long>(shape[dim]));
    std::abort();
#endif
  }
};

template <class T>
struct TensorRef<T, 0> {
  const T* data;
  ATTNLOOM_FN T operator()() const { return *data; }
};

}  // namespace attnloom
