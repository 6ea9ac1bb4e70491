"""Random batches over a cache whose unused slots hold NaN."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from attnloom.dtypes import torch_dtype
from kernels.handmade import Batch, Level, launch, make_plan
from kernels.oracle import attention

TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}


def tensor(rng, shape, dtype: str):
    """Standard normal numbers; fp8 ones are quantised on the way."""
    return torch.from_numpy(rng.standard_normal(shape, np.float32)).to(torch_dtype(dtype))


def poisoned_cache(rng, pages: int, page_size: int, heads: int, dim: int, dtype: str, used):
    """A cache, `[pages, page_size, heads, dim]`: numbers in the `(page, slot)` pairs of `used`, NaN elsewhere."""
    cache = torch.full((pages, page_size, heads, dim), float("nan")).to(torch_dtype(dtype))
    for page, slot in used:
        cache[page, slot] = tensor(rng, (heads, dim), dtype)
    return cache


def page_table(rng, qo_lens, kv_lens, page_size: int) -> tuple[Batch, int]:
    """A single-level batch over shuffled pages, and how many pages the cache has (more than are used)."""
    counts = [-(-kv // page_size) for kv in kv_lens]
    total = sum(counts) + 3
    shuffled = rng.permutation(total)
    starts = np.cumsum([0, *counts])
    pages = [[int(p) for p in shuffled[a:b]] for a, b in pairwise(starts)]
    tokens = np.cumsum([0, *qo_lens])
    level = Level(
        tokens=[list(range(a, b)) for a, b in pairwise(tokens)],
        kv_len=list(kv_lens),
        kv_start=[0] * len(kv_lens),
        kv_offset=[0] * len(kv_lens),
        pages=pages,
    )
    return Batch(list(qo_lens), list(kv_lens), page_size, [level]), total


def shared_prefix(rng, prefixes, group_sizes, qo_lens, suffix_lens, page_size: int) -> tuple[Batch, int]:
    """Two levels: requests of a group share a prefix (any length, so that suffixes start inside a page)."""
    kv_lens, prefix_of, tokens_of_group = [], [], []
    token_at = np.cumsum([0, *qo_lens])
    request = 0
    for prefix, size in zip(prefixes, group_sizes, strict=True):
        group_tokens = []
        for _ in range(size):
            kv_lens.append(prefix + suffix_lens[request])
            prefix_of.append(prefix)
            group_tokens += range(token_at[request], token_at[request + 1])
            request += 1
        tokens_of_group.append(group_tokens)
    total = sum(-(-n // page_size) + 1 for n in [*prefixes, *suffix_lens]) + 2
    free = [int(p) for p in rng.permutation(total)]
    take = lambda n: [free.pop() for _ in range(n)]  # noqa: E731
    tall = Level(
        tokens=[rng.permutation(t).tolist() for t in tokens_of_group],
        kv_len=list(prefixes),
        kv_start=[0] * len(prefixes),
        kv_offset=[0] * len(prefixes),
        pages=[take(-(-n // page_size)) for n in prefixes],
    )
    offsets = [int(rng.integers(page_size)) for _ in suffix_lens]
    short = Level(
        tokens=[list(range(a, b)) for a, b in pairwise(token_at)],
        kv_len=list(suffix_lens),
        kv_start=prefix_of,
        kv_offset=offsets,
        pages=[take(-(-(n + o) // page_size)) for n, o in zip(suffix_lens, offsets, strict=True)],
    )
    return Batch(list(qo_lens), kv_lens, page_size, [tall, short]), total


def used_slots(batch: Batch):
    """The `(page, slot)` pairs that the levels list."""
    used = set()
    for level in batch.levels:
        lists = level.pages if len(level.pages) and isinstance(level.pages[0], tuple) else [level.pages]
        for pages in lists:
            for row, ids in enumerate(pages):
                for j in range(level.kv_len[row]):
                    slot = level.kv_offset[row] + j
                    used.add((ids[slot // batch.page_size], slot % batch.page_size))
    return used


def run_and_compare(
    library, batch, total_pages, kv_heads, group, variant, rng, *, splits=0.5, transposed=False, **options
):
    """Run on random tensors, compare with the oracle within the output's tolerance, return `(q, k, v, out, lse)`."""
    config = library.config
    q = tensor(rng, (sum(batch.qo_lens), kv_heads * group, config.head_dim), config.dtype)
    used = used_slots(batch)
    k = poisoned_cache(rng, total_pages, batch.page_size, kv_heads, config.head_dim, config.kv_dtype, used)
    v = poisoned_cache(rng, total_pages, batch.page_size, kv_heads, config.head_dim_v, config.kv_dtype, used)
    if transposed:
        q = q.transpose(0, 1).contiguous().transpose(0, 1)
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    workers = int(rng.integers(1, 5))
    plan = make_plan(library, batch, kv_heads, group, workers=workers, splits=splits, rng=rng)
    options.setdefault("sm_scale", config.head_dim**-0.5)
    out, lse = launch(library, batch, q, k, v, plan, **options)
    scales = {name: options[name] for name in ("k_scale", "v_scale") if options.get(name) is not None}
    o, expected_lse = attention(batch, q, k, v, variant, sm_scale=options["sm_scale"], **scales)
    assert_close(out, o, max(TOLERANCE[config.dtype], TOLERANCE[config.out_dtype]))
    if variant.use_softmax:
        assert_close(lse, expected_lse, max(TOLERANCE[config.dtype], 1e-5))
    return q, k, v, out, lse


def assert_close(actual, expected, tolerance):
    actual = actual.double().numpy()
    assert np.array_equal(np.isneginf(actual), np.isneginf(expected))
    assert not np.isnan(actual).any()
    finite = np.isfinite(expected)
    error = np.abs(actual - np.where(finite, expected, 0))[finite] / np.maximum(1, np.abs(expected[finite]))
    assert error.size == 0 or error.max() <= tolerance, f"off by {error.max():.3g}, allowed {tolerance:.3g}"
