"""`t5_bias` in float64."""

import numpy as np


class T5Bias:
    """A learned bias a bucket of distances and head."""

    def logits_transform(self, p, x, site):
        """`x + bias[bucket(kv_pos - q_pos), head]`."""
        last = len(p.buckets) // 2
        distance = np.clip(site.kv_pos - site.q_pos, -last, last)
        return x + p.bias.astype(np.float64)[p.buckets[distance + last], site.qo_head]
