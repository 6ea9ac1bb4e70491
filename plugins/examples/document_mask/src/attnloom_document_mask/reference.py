"""`document_mask` in float64."""

import numpy as np


class DocumentMask:
    """A token sees the keys of its own document."""

    def logits_mask(self, p, site):
        """Whether the key's document is the query's."""
        begin = p.begin[site.request]
        return p.ids[begin + _own_key(site)] == p.ids[begin + site.kv_index]

    def kv_range(self, p, site):
        """From the first key of the query's document; nothing in a request without keys."""
        key = np.minimum(p.begin[site.request] + _own_key(site), len(p.first) - 1)
        lo = np.where(site.kv_len > 0, p.first[key] if len(p.first) else 0, 0).astype(np.int64)
        hi = np.where(site.kv_len > 0, np.iinfo(np.int64).max, 0)
        return [(lo, np.broadcast_to(hi, lo.shape))]


def _own_key(site):
    """The key that the query token itself brought. A token without one is taken to be in the first document."""
    return np.maximum(site.kv_len - site.qo_len + site.q_index, 0)
