"""PyTorch's `BlockMask` as a block-sparse index over keys and values that stay where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from attrs import frozen

from attnloom.errors import IndexFormatError
from attnloom.index import ComposedIndex, Level

_WHOLE = 1 << 30
"""The block size of PyTorch's mask that masks nothing."""


@frozen(eq=False)
class BlockList:
    """The key blocks that each query block sees: counts `[B, H, rows]` and ids `[B, H, rows, columns]`, B or H may be
    1."""

    counts: np.ndarray
    ids: np.ndarray


@frozen(eq=False)
class Blocks:
    """What a `BlockMask` says.

    Attributes:
        size: `(queries, keys)` of a block.
        partial: blocks in which the mask decides; `full` those in which it keeps all.
        heads: 1, or the number of query heads, each with lists of its own.
    """

    size: tuple[int, int]
    partial: BlockList
    full: BlockList | None
    mask_mod: Any

    @property
    def batch(self) -> int:
        """Batch rows that have lists of their own, or 1."""
        return self.partial.counts.shape[0]

    @property
    def heads(self) -> int:
        """Query heads that have lists of their own, or 1."""
        return self.partial.counts.shape[1]


def read_block_mask(block_mask, batch: int, heads: int, q_len: int, kv_len: int) -> Blocks | None:
    """The lists of `block_mask`; none where it masks nothing.

    Raises:
        IndexFormatError: it was made for another batch, other heads or lengths, or names blocks that do not exist.
    """
    if not hasattr(block_mask, "BLOCK_SIZE"):
        raise IndexFormatError(
            f"block_mask is a {type(block_mask).__name__}, no BlockMask: torch's create_block_mask makes one"
        )
    if max(block_mask.BLOCK_SIZE) >= _WHOLE:
        return None
    made_for = tuple(block_mask.seq_lengths)
    if made_for != (q_len, kv_len):
        raise IndexFormatError(
            f"block_mask was made for {made_for[0]} queries and {made_for[1]} keys, q and k have {q_len} and {kv_len}: "
            "make another with create_block_mask"
        )
    partial = _list(block_mask.kv_num_blocks, block_mask.kv_indices)
    full = None
    if block_mask.full_kv_num_blocks is not None:
        full = _list(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    size = tuple(block_mask.BLOCK_SIZE)
    for one in (partial, full):
        if one is not None:
            _check(one, size, batch, heads, q_len, kv_len)
    return Blocks(size, partial, full, block_mask.mask_mod)


def _list(counts: torch.Tensor, ids: torch.Tensor) -> BlockList:
    """As arrays with four dimensions; a mask that was indexed has lost some."""
    counts, ids = counts.detach().cpu().numpy(), ids.detach().cpu().numpy()
    missing = (1,) * (4 - ids.ndim)
    return BlockList(counts.reshape(missing + counts.shape), ids.reshape(missing + ids.shape))


def _check(one: BlockList, size, batch: int, heads: int, q_len: int, kv_len: int) -> None:
    own_batch, own_heads, rows, columns = one.ids.shape
    if own_batch not in (1, batch) or own_heads not in (1, heads):
        raise IndexFormatError(
            f"block_mask has a batch of {own_batch} and {own_heads} head(s), q a batch of {batch} and {heads} heads: "
            "each must be equal or 1"
        )
    if rows != -(-q_len // size[0]):
        raise IndexFormatError(f"block_mask has {rows} query blocks of {size[0]}, q has {q_len} queries")
    if one.counts.size and not 0 <= one.counts.min() <= one.counts.max() <= columns:
        raise IndexFormatError(
            f"block_mask counts {one.counts.min()} to {one.counts.max()} blocks in lists of {columns} entries"
        )
    used = one.ids[np.arange(columns) < one.counts[..., None]]
    if used.size and not 0 <= used.min() <= used.max() < -(-kv_len // size[1]):
        raise IndexFormatError(
            f"block_mask names key blocks {used.min()} to {used.max()}, {kv_len} keys make {-(-kv_len // size[1])} of "
            f"{size[1]}"
        )


@frozen(eq=False)
class Pages:
    """Keys and values `[batch, heads, keys, dim]` as a paged cache.

    Attributes:
        kv: the two caches, `[pages, page_size, heads, dim]`.
        first: page of the first block of each batch row; its others follow.
    """

    kv: tuple[torch.Tensor, torch.Tensor]
    page_size: int
    first: np.ndarray


def pages_of(k: torch.Tensor, v: torch.Tensor, page_size: int) -> Pages:
    """`k` and `v` in pages of `page_size` keys: views where the strides allow it, copies where they do not."""
    batch, _, length, _ = k.shape
    blocks = -(-length // page_size)
    steps = {_pages_apart(x, page_size) for x in (k, v)}
    if len(steps) == 1 and (step := steps.pop()) is not None:
        kv = tuple(_as_pages(x, page_size, step, blocks) for x in (k, v))
        return Pages(kv, page_size, np.arange(batch) * step)
    padding = blocks * page_size - length
    kv = tuple(
        torch.nn.functional.pad(x.transpose(1, 2), (0, 0, 0, 0, 0, padding)).reshape(
            batch * blocks, page_size, x.shape[1], x.shape[3]
        )
        for x in (k, v)
    )
    return Pages(kv, page_size, np.arange(batch) * blocks)


def _pages_apart(x: torch.Tensor, page_size: int) -> int | None:
    """How many pages lie between two batch rows, if it is a whole number of them."""
    batch, _, length, _ = x.shape
    page = page_size * x.stride(2)
    if length % page_size or x.stride(3) != 1 or page <= 0:
        return None
    if batch == 1:
        return length // page_size
    return x.stride(0) // page if x.stride(0) % page == 0 else None


def _as_pages(x: torch.Tensor, page_size: int, step: int, blocks: int) -> torch.Tensor:
    batch, heads, _, dim = x.shape
    pages = (batch - 1) * step + blocks if batch else 0
    strides = page_size * x.stride(2), x.stride(2), x.stride(1), 1
    return x.as_strided((pages, page_size, heads, dim), strides, x.storage_offset())


def block_index(lists: BlockList, pages: Pages, size, batch: int, q_len: int, kv_len: int) -> ComposedIndex | None:
    """The index in which each query block of each request sees the listed key blocks; none where no block is listed.

    Requests are batch rows, or, where heads have lists of their own, pairs of a batch row and a head. Queries and keys
    are counted from 0.
    """
    requests = batch * lists.counts.shape[1]
    rows, columns = lists.ids.shape[2:]
    counts = np.broadcast_to(lists.counts, (batch, *lists.counts.shape[1:])).reshape(requests * rows)
    if not counts.any():
        return None
    ids = np.broadcast_to(lists.ids, (batch, *lists.ids.shape[1:])).reshape(requests * rows, columns)
    listed = np.arange(columns) < counts[:, None]
    ids = np.sort(np.where(listed, ids, _WHOLE), axis=1)  # the last block may be short, and a row's keys have no gaps
    blocks = -(-kv_len // size[1])
    short = blocks * size[1] - kv_len
    ends_short = (ids == blocks - 1).any(axis=1)
    used = ids[listed]
    first_page = np.repeat(np.repeat(pages.first, requests // len(pages.first)), rows)
    first_query = np.minimum(np.arange(rows + 1) * size[0], q_len)
    row_indptr = (np.arange(requests)[:, None] * q_len + first_query[:-1]).reshape(-1)
    level = Level(
        row_indptr=np.append(row_indptr, requests * q_len),
        kv_len=counts * size[1] - ends_short * short,
        kv_start=np.zeros(requests * rows, np.int32),
        kv_offset=np.zeros(requests * rows, np.int32),
        page_begin=np.concatenate(([0], np.cumsum(counts[:-1], dtype=np.int64))),
        indices=(used + np.repeat(first_page, counts)).astype(np.int32),
        block_pos=used * size[1],
    )
    return ComposedIndex(
        page_size=pages.page_size,
        qo_indptr=np.arange(requests + 1) * q_len,
        kv_len=np.full(requests, kv_len),
        token_request=np.repeat(np.arange(requests), q_len),
        q_pos=np.tile(np.arange(q_len), requests),
        levels=(level,),
    )


def whole_index(pages: Pages, batch: int, q_len: int, kv_len: int) -> ComposedIndex:
    """The index in which every query of a batch row sees its every key; both are counted from 0."""
    from attnloom.dense import build_index

    return build_index(
        np.full(batch, q_len),
        np.full(batch, kv_len),
        pages.page_size,
        kv_starts=np.broadcast_to(pages.first, batch).astype(np.int64) * pages.page_size,
        q_pos=np.tile(np.arange(q_len, dtype=np.int32), batch),
    )
