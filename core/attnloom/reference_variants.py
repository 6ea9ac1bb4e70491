"""The core's own variants in float64."""

import numpy as np


class Causal:
    """A query sees the keys at its own position and before."""

    def kv_range(self, p, site):
        """`kv_pos <= q_pos`."""
        hi = np.asarray(site.q_pos) + 1
        return [(np.full_like(hi, np.iinfo(np.int64).min), hi)]
