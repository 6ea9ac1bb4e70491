"""Every entry of the gallery with small arguments, and the same in plain float64 numpy, written from the formulas."""

import math

import numpy as np
import torch
from attnloom.mods import gallery

HEADS, LENGTH = 4, 48
PREFIX = torch.tensor([5, 0, 20])
DOCUMENTS = torch.tensor([0] * 7 + [1] * 1 + [2] * 20 + [5] * 20)
SLOPES = torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(HEADS)])
TABLE = torch.linspace(-2, 2, HEADS * 8).view(HEADS, 8)
BUCKETS = gallery.t5_buckets(8, 32)
R1, R2 = torch.tensor([0.5, 1.0, 1.5, 2.0]), torch.tensor([0.1, 0.3, 1.0, 3.0])
GATES = torch.cumsum(torch.log(torch.sigmoid(torch.linspace(-1, 6, HEADS * LENGTH).view(HEADS, LENGTH))), 1)
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 5]
TREE_PREFIX = LENGTH - len(PARENTS)


def _ancestors():
    above = torch.zeros(len(PARENTS), len(PARENTS), dtype=torch.bool)
    for node in range(len(PARENTS)):
        up = node
        while up >= 0:
            above[node, up] = True
            up = PARENTS[up]
    return above


ANCESTORS = _ancestors()

MASKS = {
    "causal": gallery.causal(),
    "prefix_lm": gallery.prefix_lm(PREFIX),
    "sliding_window": gallery.sliding_window(6),
    "dilated_window": gallery.dilated_window(12, 3),
    "document": gallery.document(DOCUMENTS),
    "global_local": gallery.global_local(4, 2),
    "streaming_sinks": gallery.streaming_sinks(3, 8),
    "chunked": gallery.chunked(10),
    "neighborhood_2d": gallery.neighborhood_2d(6, 8, 3),
    "tree": gallery.tree(TREE_PREFIX, ANCESTORS),
    "block_diffusion": gallery.block_diffusion(24, 5),
}
SCORES = {
    "alibi": gallery.alibi(SLOPES),
    "t5_bias": gallery.t5_bias(TABLE, BUCKETS),
    "kerple": gallery.kerple(R1, R2),
    "soft_cap": gallery.soft_cap(20.0),
    "forgetting": gallery.forgetting(GATES),
    "temperature": gallery.temperature(0.1, 8),
}


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
    "prefix_lm": lambda b, q, kv: kv < [5, 0, 20][b] or kv <= q,
    "sliding_window": lambda b, q, kv: 0 <= q - kv <= 6,
    "dilated_window": lambda b, q, kv: q - kv in range(-12, 13, 3),
    "document": lambda b, q, kv: int(DOCUMENTS[q]) == int(DOCUMENTS[kv]) and kv <= q,
    "global_local": lambda b, q, kv: abs(q - kv) <= 4 or min(q, kv) < 2,
    "streaming_sinks": lambda b, q, kv: kv <= q and (kv < 3 or q - kv < 8),
    "chunked": lambda b, q, kv: kv <= q and kv >= q - q % 10,
    "neighborhood_2d": lambda b, q, kv: _neighborhood(q, kv),
    "tree": lambda b, q, kv: _tree(q, kv),
    "block_diffusion": lambda b, q, kv: _block_diffusion(q, kv),
}


def _t5_bucket(distance):
    distance = max(distance, 0)
    if distance < 4:
        return distance
    return min(4 + math.floor(math.log(distance / 4) / math.log(8) * 4 + 1e-12), 7)


def _t5(x, h, q, kv):
    return x + TABLE.double().numpy()[h, [_t5_bucket(min(d, 32)) for d in q - kv]]


PLAIN_SCORES = {
    "alibi": lambda x, h, q, kv: x - 0.25 ** (h + 1) * (q - kv),
    "t5_bias": _t5,
    "kerple": lambda x, h, q, kv: (
        x - R1.double().numpy()[h] * np.log1p(R2.double().numpy()[h] * np.abs(q - kv).astype(np.float64))
    ),
    "soft_cap": lambda x, h, q, kv: 20 * np.tanh(x / 20),
    "forgetting": lambda x, h, q, kv: x + GATES.double().numpy()[h, q] - GATES.double().numpy()[h, kv],
    "temperature": lambda x, h, q, kv: x * (1 + 0.1 * np.log(1 + np.floor((q + 1) / 8))),
}
