"""A batch of requests that share pages for tests, and where its keys then lie."""

from __future__ import annotations

import numpy as np

SHARED = 3
"""Pages at the front that all requests with so many share."""


def example(rng, qo_lens, kv_lens, page_size: int):
    """`(needs, slots)`: a padded table of pages, and for each request the slots of its keys, in order."""
    counts = [-(-int(keys) // page_size) for keys in kv_lens]
    shuffled = rng.permutation(sum(counts) + SHARED + 2).tolist()
    front = [shuffled.pop() for _ in range(SHARED)]
    table = np.full((len(counts), max(counts, default=0) + 1), 10**6, np.int32)
    slots = []
    for row, count, keys in zip(table, counts, kv_lens, strict=True):
        shared = min(SHARED, int(keys) // page_size)
        row[:count] = front[:shared] + [shuffled.pop() for _ in range(count - shared)]
        key = np.arange(int(keys))
        slots.append(row[key // page_size].astype(np.int64) * page_size + key % page_size)
    return {"block_tables": table}, slots
