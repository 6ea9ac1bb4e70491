"""`sinks` in float64."""

import numpy as np


class Sinks:
    """One more logit a row, without a value."""

    def row_init(self, p, site):
        """`(sinks[head], 1)`."""
        m = p.sinks.astype(np.float64)[site.qo_head]
        return m, np.ones_like(m)
