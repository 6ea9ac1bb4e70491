"""A batch of pages for tests, and where its keys then lie."""

from __future__ import annotations

import numpy as np


def example(rng, qo_lens, kv_lens, page_size: int):
    """`(needs, slots)`: a padded table of shuffled pages, and for each request the slots of its keys, in order."""
    counts = [-(-int(keys) // page_size) for keys in kv_lens]
    shuffled = rng.permutation(sum(counts) + 2).tolist()
    table = np.full((len(counts), max(counts, default=0) + 1), 10**6, np.int32)
    slots = []
    for row, count, keys in zip(table, counts, kv_lens, strict=True):
        row[:count] = [shuffled.pop() for _ in range(count)]
        key = np.arange(int(keys))
        slots.append(row[key // page_size].astype(np.int64) * page_size + key % page_size)
    return {"block_tables": table}, slots
