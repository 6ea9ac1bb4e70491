"""A batch of the `hash_block` format for tests, and where its keys then lie."""

import numpy as np


def example(rng, qo_lens, kv_lens, page_size):
    """`(needs, slots)`; the first two blocks of every request are the same."""
    full = [int(keys) // page_size for keys in kv_lens]
    hashes = [
        [f"shared {b}" if b < 2 else f"{request} {b}" for b in range(count)] for request, count in enumerate(full)
    ]
    known = sorted({one for own in hashes for one in own})
    pages = rng.permutation(len(known) + len(full) + 1).tolist()
    blocks = {one: pages.pop() for one in known}
    tails = [pages.pop() if int(keys) % page_size else -1 for keys in kv_lens]
    slots = []
    for own, tail, keys in zip(hashes, tails, kv_lens, strict=True):
        places = [*(blocks[one] for one in own), tail]
        slots.append(np.array([places[k // page_size] * page_size + k % page_size for k in range(int(keys))], np.int64))
    return {"hashes": hashes, "blocks": blocks, "tails": tails}, slots
