"""`document_mask` in float64."""

import numpy as np


class DocumentMask:
    """A token sees the keys of its own document."""

    def logits_mask(self, p, site):
        """Whether the key's document is the query's."""
        begin = p.begin[site.request]
        return _at(p.ids, begin + _own_key(site)) == _at(p.ids, begin + site.kv_index)

    def kv_range(self, p, site):
        """From the first key of the query's document; nothing in a request without keys."""
        lo = _at(p.first, p.begin[site.request] + _own_key(site)).astype(np.int64)
        hi = np.where(site.kv_len > 0, np.iinfo(np.int64).max, 0)
        return [(lo, np.broadcast_to(hi, lo.shape))]


def _own_key(site):
    """The key that the query token itself brought. A token without one is taken to be in the first document."""
    return np.maximum(site.kv_len - site.qo_len + site.q_index, 0)


def _at(values, index):
    """`values[index]`. The queries of a last request without keys are past the end; no pair of theirs is asked for."""
    return values[np.minimum(index, len(values) - 1)] if len(values) else np.zeros_like(index)
