"""`bit_mask` in float64."""

import numpy as np


class BitMask:
    """A packed custom mask, bit q_index * kv_len + kv_index of each request."""

    def logits_mask(self, p, site):
        """True where the pair's bit is set; false beyond the mask."""
        requests = len(p.begin) - 1
        known = np.asarray(site.request) < requests
        request = np.minimum(site.request, requests - 1)
        bit = np.asarray(site.q_index, np.int64) * site.kv_len + site.kv_index
        word = p.begin[request] + (bit >> 5)
        known = known & (word < p.begin[request + 1])
        if not known.any():
            return known
        return known & ((p.bits[np.where(known, word, 0)] >> (bit & 31).astype(np.uint32)) & 1).astype(bool)
