"""Indices over shuffled pages, made by hand so that the kit needs no storage format, and their arrays by name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnloom.index import ComposedIndex, Level

NEVER = 10**6
"""The page id of padding, which nothing may use."""

INDEX_ARRAYS = ("qo_indptr", "kv_len", "token_request", "q_pos")
LEVEL_ARRAYS = (
    "row_indptr", "row_tokens", "kv_len", "kv_start", "kv_offset", "page_begin", "indices", "block_pos", "mask_bits",
    "mask_begin", "key_pos", "key_pos_begin",
)  # fmt: skip


def paged_index(rng: np.random.Generator, qo_lens, kv_lens, page_size: int) -> tuple[ComposedIndex, int]:
    """An index of one level over shuffled pages, with padding that must never be used, and the number of pages."""
    qo_lens, kv_lens = np.asarray(qo_lens, np.int64), np.asarray(kv_lens, np.int64)
    counts = -(-kv_lens // page_size)
    num_pages = int(counts.sum()) + 3
    pages = rng.permutation(num_pages)
    width = int(counts.max(initial=0)) + 1
    table = np.full((len(kv_lens), width), NEVER, np.int32)
    for row, (begin, count) in enumerate(zip(np.cumsum(counts) - counts, counts, strict=True)):
        table[row, :count] = pages[begin : begin + count]
    zeros = np.zeros(len(kv_lens), np.int32)
    qo_indptr = np.concatenate([[0], np.cumsum(qo_lens)])
    level = Level(
        row_indptr=qo_indptr,
        kv_len=kv_lens,
        kv_start=zeros,
        kv_offset=zeros,
        page_begin=np.arange(len(kv_lens)) * width,
        indices=table.reshape(-1),
    )
    index = ComposedIndex(
        page_size=page_size,
        qo_indptr=qo_indptr,
        kv_len=kv_lens,
        token_request=np.repeat(np.arange(len(kv_lens)), qo_lens),
        levels=(level,),
    )
    return index, num_pages


def arrays_of(index: ComposedIndex) -> Iterator[tuple[str, np.ndarray]]:
    """Every array of the index, its levels and its single form, with a name for each."""
    for name in INDEX_ARRAYS:
        if getattr(index, name) is not None:
            yield name, np.asarray(getattr(index, name))
    for number, level in enumerate(index.levels):
        for name in LEVEL_ARRAYS:
            if getattr(level, name) is not None:
                yield f"levels[{number}].{name}", np.asarray(getattr(level, name))
    if index.single is not None:
        for name, array in arrays_of(index.single):
            yield f"single.{name}", array
