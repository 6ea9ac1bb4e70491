// streaming_llm: a query sees the first `sinks` positions and the latest `window`; the tiles between are never loaded.
#pragma once
#include <attnloom/variant.h>

namespace attnloom_streaming_llm {

struct StreamingLLM {
  static constexpr bool range_monotone = true;
  static constexpr bool range_head_uniform = true;

  template <class Params>
  ATTNLOOM_FN attnloom::Ranges kv_range(const Params& p, const attnloom::Site& site) const {
    const int64_t end = int64_t{site.q_pos} + 1;
    const int begin = attnloom::max(attnloom::saturate(end - p.window), p.sinks);
    return {{0, attnloom::min(attnloom::saturate(end), p.sinks)}, {begin, attnloom::saturate(end)}};
  }
};

}  // namespace attnloom_streaming_llm
