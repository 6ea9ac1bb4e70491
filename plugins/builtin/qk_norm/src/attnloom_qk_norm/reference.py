"""`qk_norm` in float64."""

import numpy as np


class QkNorm:
    """RMS norm over each row of q and of k."""

    def query_transform(self, p, x, site):
        """`x * rsqrt(mean(x^2) + eps) * q_weight`."""
        return _normalise(x, p.q_weight, p.eps)

    def key_transform(self, p, x, site):
        """`x * rsqrt(mean(x^2) + eps) * k_weight`."""
        return _normalise(x, p.k_weight, p.eps)


def _normalise(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight.astype(np.float64)
