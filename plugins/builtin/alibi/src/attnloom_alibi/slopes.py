"""The head slopes of ALiBi (arXiv:2108.12409)."""

from __future__ import annotations

import numpy as np


def head_slopes(spec, params) -> np.ndarray:
    """The slopes of `spec.num_qo_heads` heads, float64."""
    return slopes(spec.num_qo_heads)


def slopes(heads: int) -> np.ndarray:
    """`2^(-8 i / heads)`, i = 1.. for a power of two.

    For other counts the series of the power of two below, then every other slope of the power of two above.
    """
    below = 1 << (heads.bit_length() - 1)
    return np.concatenate([_series(below), _series(2 * below)[::2][: heads - below]])


def _series(heads: int) -> np.ndarray:
    return 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
