"""Every example of the gallery, and the same in plain float64 numpy, written from the formulas."""

import math

import numpy as np
from attnloom.mods import examples

LENGTH = examples.LENGTH
MASKS = {name: getattr(examples, name) for name in examples.MASKS}
SCORES = {name: getattr(examples, name) for name in examples.SCORES}

DOCUMENTS = [0] * 7 + [1] + [2] * 20 + [5] * 20
TABLE = np.linspace(-2, 2, 32, dtype=np.float32).astype(np.float64).reshape(4, 8)[:, ::-1]
R1, R2 = np.array([0.5, 1.0, 1.5, 2.0]), np.float32([0.1, 0.3, 1.0, 3.0]).astype(np.float64)
GATES = -np.log1p(np.exp(-np.linspace(1, 6, 4 * LENGTH).reshape(4, LENGTH))).cumsum(1)
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 5]
TREE_PREFIX = LENGTH - len(PARENTS)


def _neighborhood(q, kv, height=6, width=8, kernel=3):
    r = kernel // 2
    y, x = min(max(q // width, r), height - 1 - r), min(max(q % width, r), width - 1 - r)
    return abs(kv // width - y) <= r and abs(kv % width - x) <= r


def _tree(q, kv):
    if q < TREE_PREFIX or kv < TREE_PREFIX:
        return kv <= q
    node = q - TREE_PREFIX
    while node >= 0:
        if node == kv - TREE_PREFIX:
            return True
        node = PARENTS[node]
    return False


def _block_diffusion(q, kv, n=24, size=5):
    if q < n and kv < n:
        return q // size == kv // size
    if q < n:
        return (kv - n) // size < q // size
    return kv >= n and (kv - n) // size <= (q - n) // size


PLAIN_MASKS = {
    "causal": lambda b, q, kv: kv <= q,
    "prefix_lm": lambda b, q, kv: kv < [12, 0, 20][b] or kv <= q,
    "sliding_window": lambda b, q, kv: 0 <= q - kv <= 9,
    "dilated_window": lambda b, q, kv: q - kv in range(-15, 16, 3),
    "document": lambda b, q, kv: DOCUMENTS[q] == DOCUMENTS[kv] and kv <= q,
    "global_local": lambda b, q, kv: abs(q - kv) <= 5 or min(q, kv) < 3,
    "streaming_sinks": lambda b, q, kv: kv <= q and (kv < 4 or q - kv < 12),
    "chunked": lambda b, q, kv: kv <= q and kv >= q - q % 10,
    "neighborhood_2d": lambda b, q, kv: _neighborhood(q, kv),
    "tree": lambda b, q, kv: _tree(q, kv),
    "block_diffusion": lambda b, q, kv: _block_diffusion(q, kv),
}


def _t5_bucket(distance):
    distance = min(max(distance, 0), 32)
    if distance < 4:
        return distance
    return min(4 + math.floor(math.log(distance / 4) / math.log(8) * 4 + 1e-12), 7)


PLAIN_SCORES = {
    "alibi": lambda x, h, q, kv: x - 0.25 ** (h + 1) * (q - kv),
    "t5_bias": lambda x, h, q, kv: x + TABLE[h, [_t5_bucket(d) for d in q - kv]],
    "kerple": lambda x, h, q, kv: x - R1[h] * np.log1p(R2[h] * np.abs(q - kv)),
    "soft_cap": lambda x, h, q, kv: 20 * np.tanh(x / 20),
    "forgetting": lambda x, h, q, kv: x + GATES[h, q] - GATES[h, kv],
    "temperature": lambda x, h, q, kv: x * (1 + 0.1 * np.log(1 + np.floor((q + 1) / 8))),
}
