// bit_mask: bit q_index * kv_len + kv_index of the request's mask keeps the pair; pairs beyond the mask are hidden.
#pragma once
#include <attnloom/variant.h>

struct BitMask {
  template <class Params>
  ATTNLOOM_FN bool logits_mask(const Params& p, const attnloom::Site& site) const {
    if (site.request + 1 >= p.begin.shape[0]) return false;
    const int64_t bit = int64_t{site.q_index} * site.kv_len + site.kv_index;
    const int64_t word = p.begin(site.request) + (bit >> 5);
    if (word >= p.begin(site.request + 1)) return false;
    return (p.bits(word) >> (bit & 31)) & 1u;
  }
};
