"""`sliding_window` in float64."""

import numpy as np

UNLIMITED = 1 << 62


class SlidingWindow:
    """The positions near a query's own."""

    def kv_range(self, p, site):
        """`[q_pos - left, q_pos + right + 1)`, a side open where it is -1."""
        pos = np.asarray(site.q_pos)
        lo = pos - (UNLIMITED if p.left < 0 else p.left)
        hi = pos + (UNLIMITED if p.right < 0 else p.right + 1)
        return [(lo, hi)]
