// Bounds checks of debug builds.
#pragma once
#if defined(ATTNLOOM_DEBUG)
#include <cstdio>
#include <cstdlib>
#define ATTNLOOM_CHECK(condition, what, value)                                                           \
  do {                                                                                                   \
    if (!(condition)) {                                                                                  \
      std::fprintf(stderr, "attnloom: %s: %lld breaks `%s`\n", what, static_cast<long long>(value), #condition); \
      std::abort();                                                                                      \
    }                                                                                                    \
  } while (0)
#else
#define ATTNLOOM_CHECK(condition, what, value) \
  do {                                         \
  } while (0)
#endif
