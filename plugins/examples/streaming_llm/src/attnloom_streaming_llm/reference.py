"""`streaming_llm` in float64."""

import numpy as np


class StreamingLLM:
    """The first positions, and the latest."""

    def kv_range(self, p, site):
        """`[0, sinks)` and `(q_pos - window, q_pos]`, neither beyond the query."""
        end = np.asarray(site.q_pos) + 1
        return [(np.zeros_like(end), np.minimum(end, p.sinks)), (np.maximum(end - p.window, p.sinks), end)]
