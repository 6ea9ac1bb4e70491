"""`rope` in float64."""

import numpy as np


class Rope:
    """Pair i of a row turns by position * inv_freq[i] radians."""

    def query_transform(self, p, x, site):
        """Queries `x` [..., head_dim], by their own positions."""
        return _rotate(p, x, site.q_pos)

    def key_transform(self, p, x, site):
        """Keys `x` [..., head_dim], by their own positions."""
        return _rotate(p, x, site.kv_pos)


def _rotate(p, x, pos):
    angle = (np.asarray(pos, np.int64) + p.offset)[..., None] * p.inv_freq.astype(np.float64)
    sine, cosine = p.scale * np.sin(angle), p.scale * np.cos(angle)
    half = p.rotary_dim // 2
    firsts, seconds = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if p.interleaved else (slice(half), slice(half, 2 * half))
    )
    out = x.astype(np.float64, copy=True)
    out[..., firsts] = x[..., firsts] * cosine - x[..., seconds] * sine
    out[..., seconds] = x[..., seconds] * cosine + x[..., firsts] * sine
    return out
