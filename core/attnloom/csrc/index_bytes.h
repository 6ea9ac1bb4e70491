// What an IndexView does not tell of its arrays: how many bytes they have.
#pragma once
#include <attnloom/args.h>

#include <cstdint>

namespace attnloom {

struct LevelBytes {
  int64_t indices;  // from the first page id to the last, the lists of all heads; -1: they are on the device already
  int64_t block_pos, mask_bits, key_pos;
};

struct IndexBytes {
  const void* device_kv_len;  // null: the host's are uploaded
  LevelBytes levels[kMaxLevels];
};

}  // namespace attnloom
