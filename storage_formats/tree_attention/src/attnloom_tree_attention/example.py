"""A batch of draft trees for tests, where its keys then lie, and which of them each token sees."""

from __future__ import annotations

import numpy as np


def example(rng, qo_lens, kv_lens, page_size: int):
    """`(needs, slots, visible)`; none where a request has fewer keys than its tree has tokens."""
    lens = [(int(qo), int(kv)) for qo, kv in zip(qo_lens, kv_lens, strict=True)]
    if any(qo > kv for qo, kv in lens):
        return None
    counts = [-(-kv // page_size) for _, kv in lens]
    shuffled = rng.permutation(sum(counts) + 2).tolist()
    table = np.zeros((len(lens), max(counts, default=0) + 1), np.int32)
    parents, slots, visible = [], [], []
    for row, count, (qo, kv) in zip(table, counts, lens, strict=True):
        row[:count] = [shuffled.pop() for _ in range(count)]
        key = np.arange(kv)
        slots.append(row[key // page_size].astype(np.int64) * page_size + key % page_size)
        parents.append([int(rng.integers(-1, token)) if token else -1 for token in range(qo)])
        visible.append(_seen(parents[-1], kv - qo))
    return {"block_tables": table, "parents": parents}, slots, visible


def _seen(parents, committed: int) -> np.ndarray:
    """bool [tokens, committed + tokens]: all committed keys, the token's ancestors and itself."""
    seen = np.zeros((len(parents), committed + len(parents)), bool)
    seen[:, :committed] = True
    for token, parent in enumerate(parents):
        if parent >= 0:
            seen[token] |= seen[parent]
        seen[token, committed + token] = True
    return seen
