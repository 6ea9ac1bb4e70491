// document_mask: a token sees the keys of its own document; kv_range skips the tiles of those before it.
#pragma once
#include <attnloom/variant.h>

namespace attnloom_document_mask {

struct DocumentMask {
  static constexpr bool range_monotone = true;
  static constexpr bool range_head_uniform = true;

  // The key that the query token itself brought. A token without one is taken to be in the first document.
  static ATTNLOOM_FN int own_key(const attnloom::Site& site) {
    return attnloom::max(site.kv_len - site.qo_len + site.q_index, 0);
  }

  template <class Params>
  ATTNLOOM_FN bool logits_mask(const Params& p, const attnloom::Site& site) const {
    const int64_t begin = p.begin(site.request);
    return p.ids(begin + own_key(site)) == p.ids(begin + site.kv_index);
  }

  template <class Params>
  ATTNLOOM_FN attnloom::Range kv_range(const Params& p, const attnloom::Site& site) const {
    if (site.kv_len == 0) return {0, 0};
    return {p.first(p.begin(site.request) + own_key(site)), attnloom::kPosMax};
  }
};

}  // namespace attnloom_document_mask
