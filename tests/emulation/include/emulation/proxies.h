// What the asynchronous proxy, through which `wgmma` reads shared memory, has been told of by fences.
#pragma once
#include "block.h"

namespace emulation {

inline char known[kSharedBytes];               // shared memory as products may read it
inline char copied[kSharedBytes];              // what copies brought last, before anything was stored over it
inline int copied_by[kSharedBytes / kPiece];   // the thread whose copy that was

inline void note_copy(uint32_t to) {
  std::memcpy(copied + to, shared + to, kPiece);
  copied_by[to / kPiece] = current;
}

inline void forget_proxies() {
  std::memset(known, kPoison, sizeof known);
  std::memset(copied, kPoison, sizeof copied);
  std::fill(std::begin(copied_by), std::end(copied_by), -1);
}

// A fence makes this thread's copies known, and what was stored since they came; by whom cannot be told.
inline void make_known() {
  for (int at = 0; at < dynamic_bytes; at += kPiece)
    if (copied_by[at / kPiece] == current || std::memcmp(shared + at, copied + at, kPiece) != 0)
      std::memcpy(known + at, shared + at, kPiece);
}

}  // namespace emulation
