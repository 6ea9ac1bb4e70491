"""`sigmoid` in float64."""

import numpy as np


class Sigmoid:
    """The weight of a pair, without softmax."""

    def logits_transform(self, p, x, site):
        """`1 / (1 + exp(-(scale * x + bias)))`."""
        return 0.5 * (1.0 + np.tanh(0.5 * (p.scale * x + p.bias)))
