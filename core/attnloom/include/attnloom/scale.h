// What cached values of a kv head are multiplied with when they are read.
#pragma once
#include "args.h"
#include "fn.h"

namespace attnloom {

ATTNLOOM_FN float head_scale(const Scale& scale, int head) {
  return scale.values == nullptr ? scale.number : scale.values[head * scale.stride];
}

}  // namespace attnloom
