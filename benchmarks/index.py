"""Microseconds that the storage formats take to build and check an index: `python benchmarks/index.py`.

The least of several repeats: what the work itself takes on a machine that does other things too.
"""

from __future__ import annotations

import timeit

import attnloom
import numpy as np

PAGE_SIZE, MAX_PAGES = 16, 128


def microseconds(call) -> float:
    call()
    return min(timeit.repeat(call, number=20, repeat=100)) / 20 * 1e6


def batch(requests: int, rng):
    """Decode: one token each, 1 to 2,048 keys, zipf."""
    keys = np.minimum(64 * rng.zipf(1.3, requests), PAGE_SIZE * MAX_PAGES).astype(np.int32)
    table = rng.permutation(requests * MAX_PAGES).astype(np.int32).reshape(requests, MAX_PAGES)
    return np.ones(requests, np.int32), keys, table


def shared_tables(table):
    """Tables of the same size whose requests share a 32-page prompt, share it in pairs, or nest two prompts."""
    prompt, pairs, nested = table.copy(), table.copy(), table.copy()
    prompt[:, :32] = table[0, :32]
    pairs[1::2, :32] = table[: len(table) - 1 : 2, :32]
    nested[:, :16] = table[0, :16]
    group = max(len(table) // 8, 1)
    nested[:, 16:32] = np.repeat(table[::group, 16:32], group, axis=0)[: len(table)]
    return {"nothing shared": table, "one prompt": prompt, "prompt in pairs": pairs, "nested prompts": nested}


def main() -> None:
    rng = np.random.default_rng(0)
    page_table, radix_tree, tree_attention, dense = map(
        attnloom.storage_format, ("page_table", "radix_tree", "tree_attention", "dense")
    )
    print(f"{'what':<44}" + "".join(f"{requests:>10,}" for requests in (16, 256, 1024)) + "  requests")
    rows: dict[str, list[float]] = {}
    for requests in (16, 256, 1024):
        qo, kv, table = batch(requests, rng)
        index = page_table.build_index(qo, kv, PAGE_SIZE, block_tables=table)
        prefill = np.full(requests, 7, np.int32)
        counts = -(-kv // PAGE_SIZE)
        indptr, flat = np.concatenate([[0], np.cumsum(counts)]), np.arange(counts.sum(), dtype=np.int32)
        full = np.full(requests, PAGE_SIZE * MAX_PAGES, np.int32)
        tree = [np.arange(-1, 31, dtype=np.int32) // 2 for _ in range(requests)]
        sizes = np.full(requests, 32, np.int32)
        calls = {
            "dense": lambda qo=qo, kv=kv: dense.build_index(qo, kv),
            "page_table, padded": lambda qo=qo, kv=kv, t=table: page_table.build_index(
                qo, kv, PAGE_SIZE, block_tables=t
            ),
            "page_table, padded, 7 tokens each": lambda qo=prefill, kv=kv, t=table: page_table.build_index(
                qo, kv, PAGE_SIZE, block_tables=t
            ),
            "page_table, ragged": lambda qo=qo, kv=kv, p=indptr, i=flat: page_table.build_index(
                qo, kv, PAGE_SIZE, kv_indptr=p, kv_indices=i
            ),
            "tree_attention, 32 tokens each": lambda q=sizes, t=table, p=tree, kv=full: tree_attention.build_index(
                q, kv, PAGE_SIZE, block_tables=t, parents=p
            ),
            "validate, of a page table": index.validate,
            "check_pages, of a page table": lambda index=index, pages=table.size: index.check_pages(pages),
        }
        for name, shared in shared_tables(table).items():
            calls[f"radix_tree, {name}"] = lambda qo=qo, kv=full, t=shared: radix_tree.build_index(
                qo, kv, PAGE_SIZE, block_tables=t
            )
        for name, call in calls.items():
            rows.setdefault(name, []).append(microseconds(call))
    for name, figures in rows.items():
        print(f"{name:<44}" + "".join(f"{figure:>10.1f}" for figure in figures) + "  us")


if __name__ == "__main__":
    main()
