"""An index spelled out pair by pair: what tests compare and pictures show."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from attnloom.index import ComposedIndex, Level
from attnloom.index_arrays import as_host_array, unpack_bits


@frozen(kw_only=True, eq=False)
class DenseIndex:
    """Every (query token, key) pair of a batch: `T` query tokens, `K` the longest `kv_len`, column `j` is `kv_index`.

    Attributes:
        visible: bool[T, K], whether the index shows the pair (a variant's masks and ranges come on top).
        slot: i64[T, K] cache slot, `page * page_size + offset`; -1 where no level covers the pair.
        kv_pos: i32[T, K] position of the key; -1 where no level covers the pair.
        level: i8[T, K] the level that covers the pair, masked by its bits or not; -1: none.
        q_pos: i32[T] position of each query token.
    """

    visible: np.ndarray
    slot: np.ndarray
    kv_pos: np.ndarray
    level: np.ndarray
    q_pos: np.ndarray


def to_dense(index: ComposedIndex, kv_head: int = 0) -> DenseIndex:
    """Spells `index` out, row by row. For small batches: it holds `T * K` elements.

    Raises:
        IndexFormatError: for indices that live on a device.
    """
    shape = (index.num_tokens, int(index.kv_len.max(initial=0)))
    dense = DenseIndex(
        visible=np.zeros(shape, bool),
        slot=np.full(shape, -1, np.int64),
        kv_pos=np.full(shape, -1, np.int32),
        level=np.full(shape, -1, np.int8),
        q_pos=query_positions(index),
    )
    for number, level in enumerate(index.levels):
        pages = as_host_array(level.indices, "indices")
        pages = pages[kv_head] if level.per_head else pages
        for row in range(level.num_rows):
            _fill_row(dense, index.page_size, number, level, row, pages)
    return dense


def query_positions(index: ComposedIndex):
    """i32[T]: `q_pos`, or the bottom-right aligned default."""
    if index.q_pos is not None:
        return index.q_pos
    last = index.kv_len - index.qo_indptr[1:]
    return (np.arange(index.num_tokens) + last[index.token_request]).astype(np.int32)


def row_tokens(level: Level, row: int):
    """The query tokens of block row `row`."""
    begin, end = level.row_indptr[row], level.row_indptr[row + 1]
    return np.arange(begin, end) if level.row_tokens is None else level.row_tokens[begin:end]


def _fill_row(dense: DenseIndex, page_size: int, number: int, level: Level, row: int, pages) -> None:
    tokens, keys = row_tokens(level, row), int(level.kv_len[row])
    slots = int(level.kv_offset[row]) + np.arange(keys)
    entries = int(level.page_begin[row]) + slots // page_size
    start = int(level.kv_start[row])
    where = np.ix_(tokens, np.arange(start, start + keys))
    dense.slot[where] = pages[entries].astype(np.int64) * page_size + slots % page_size
    dense.level[where] = number
    if level.key_pos is not None and level.key_pos_begin[row] >= 0:
        begin = int(level.key_pos_begin[row])
        dense.kv_pos[where] = level.key_pos[begin : begin + keys]
    elif level.block_pos is not None:
        dense.kv_pos[where] = level.block_pos[entries] + slots % page_size
    else:
        dense.kv_pos[where] = start + np.arange(keys)
    if level.mask_bits is not None and level.mask_begin[row] >= 0:
        bits = unpack_bits(level.mask_bits, 32 * int(level.mask_begin[row]), len(tokens) * keys)
        dense.visible[where] = bits.reshape(len(tokens), keys)
    else:
        dense.visible[where] = True
