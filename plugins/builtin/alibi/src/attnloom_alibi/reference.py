"""`alibi` in float64."""


class Alibi:
    """A penalty that grows with distance."""

    def logits_transform(self, p, x, site):
        """`x + slope[head] * (kv_pos - q_pos)`."""
        return x + p.slopes.astype("float64")[site.qo_head] * (site.kv_pos - site.q_pos)
