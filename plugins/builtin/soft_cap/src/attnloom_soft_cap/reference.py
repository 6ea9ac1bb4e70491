"""`soft_cap` in float64."""

import numpy as np


class SoftCap:
    """Logits saturate at +-cap."""

    def logits_transform(self, p, x, site):
        """`cap * tanh(x / cap)`."""
        return p.cap * np.tanh(x / p.cap)
