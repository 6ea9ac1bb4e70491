"""`build_index` of the `radix_tree` format."""

from __future__ import annotations

import numpy as np
from attnloom.block_tables import PageLists, padded_table
from attnloom.errors import IndexFormatError
from attnloom.index import MAX_LEVELS, ComposedIndex, Level
from attnloom.index_arrays import as_host_array, batch_lengths, check_page_size, is_tensor, page_ids, positions

from attnloom_radix_tree.prefixes import Prefix, find_prefixes, keep_prefixes


def build_index(
    qo_lens,
    kv_lens,
    page_size: int,
    *,
    block_tables=None,
    sequences=None,
    host_block_tables=None,
    q_pos=None,
) -> ComposedIndex:
    """The index of a batch whose requests may share leading pages, which are then read once for all of them.

    Requests share the pages at the front of their rows that are equal and full of keys, whatever their order and
    however the prefixes nest. Each shared prefix that pays (`keep_prefixes` says when) is a block row of a level of its
    own; the last level holds what is left of each request. `index.single` is the same batch without sharing.

    Args:
        qo_lens: host integers, one a request, may be 0.
        kv_lens: host integers, one a request, may be 0; none with `sequences`: their lengths.
        page_size: slots of a page.
        block_tables: padded `[requests, max_pages]` page ids, int32 or int64, numpy or torch, used in place; or a list
            of page ids for each request.
        sequences: a sequence of a `RadixTree` (or `PagePool`) for each request, instead of `block_tables`.
        host_block_tables: the same ids on the host, where `block_tables` are on a device.
        q_pos: i32[T] position of each query token; none: bottom-right aligned.

    Raises:
        IndexFormatError: for lengths, tables or positions that contradict each other.
    """
    page_size = check_page_size(page_size)
    if (block_tables is None) == (sequences is None):
        raise IndexFormatError("give either block_tables or sequences")
    if sequences is not None:
        block_tables = [sequence.pages for sequence in sequences]
        kv_lens = [sequence.length for sequence in sequences] if kv_lens is None else kv_lens
    if kv_lens is None:
        raise IndexFormatError("kv_lens is none; with block_tables it is needed")
    qo_len, kv_len, qo_indptr, token_request = batch_lengths(qo_lens, kv_lens)
    if isinstance(block_tables, (list, tuple)):
        padded_table(block_tables, len(kv_len)).check_capacity(kv_len, page_size)
        block_tables = _pad(block_tables)
    pages = padded_table(block_tables, len(kv_len))
    if pages.per_head:
        raise IndexFormatError("block_tables has a list for each kv head; sharing is for all heads: use page_table")
    pages.check_capacity(kv_len, page_size)
    batch = {
        "page_size": page_size,
        "qo_indptr": qo_indptr,
        "kv_len": kv_len,
        "token_request": token_request,
        "q_pos": positions(q_pos, len(token_request)),
    }
    shared = np.zeros(len(kv_len), np.int64)
    single = ComposedIndex(levels=(_rest(pages, qo_indptr, kv_len, shared, page_size),), **batch).trusted()
    table = _host_table(block_tables, host_block_tables)
    kept = keep_prefixes(find_prefixes(table, kv_len // page_size, qo_len), page_size, MAX_LEVELS - 1)
    if not kept:
        return single
    depth = max(prefix.depth for prefix in kept)
    for prefix in kept:
        shared[prefix.requests] = prefix.end
    levels = [
        _prefix_level(pages, qo_len, qo_indptr, [prefix for prefix in kept if prefix.depth == at], page_size)
        for at in range(1, depth + 1)
    ]
    levels.append(_rest(pages, qo_indptr, kv_len, shared, page_size))
    return ComposedIndex(levels=levels, single=single, **batch).trusted()


def _prefix_level(pages: PageLists, qo_len, qo_indptr, prefixes: list[Prefix], page_size: int) -> Level:
    """A block row for each prefix, with the query tokens of all its requests."""
    requests = np.concatenate([prefix.requests for prefix in prefixes])
    begin = np.array([prefix.begin for prefix in prefixes], np.int64)
    end = np.array([prefix.end for prefix in prefixes], np.int64)
    first = np.array([prefix.requests[0] for prefix in prefixes])
    return Level(
        row_indptr=np.cumsum([0, *(prefix.tokens for prefix in prefixes)]),
        row_tokens=_tokens_of(requests, qo_len, qo_indptr),
        kv_len=(end - begin) * page_size,
        kv_start=begin * page_size,
        kv_offset=np.zeros(len(prefixes), np.int32),
        page_begin=pages.begin[first] + begin,
        indices=pages.indices,
    )


def _rest(pages: PageLists, qo_indptr, kv_len, shared, page_size: int) -> Level:
    """A block row for each request, with the keys past its `shared` pages."""
    start = (shared * page_size).astype(np.int32)
    return Level(
        row_indptr=qo_indptr,
        kv_len=kv_len - start,
        kv_start=start,
        kv_offset=np.zeros(len(kv_len), np.int32),
        page_begin=pages.begin + shared,
        indices=pages.indices,
    )


def _tokens_of(requests, qo_len, qo_indptr):
    """i32: the query tokens of `requests`, one request after another."""
    counts = qo_len[requests]
    before = np.cumsum(counts) - counts
    return (np.repeat(qo_indptr[requests] - before, counts) + np.arange(counts.sum())).astype(np.int32)


def _host_table(block_tables, host_block_tables):
    if host_block_tables is None:
        if is_tensor(block_tables) and block_tables.device.type != "cpu":
            raise IndexFormatError(
                f"block_tables is on {block_tables.device}; sharing is found on the host: give host_block_tables too"
            )
        return as_host_array(block_tables, "block_tables")
    table = page_ids(as_host_array(host_block_tables, "host_block_tables"), "host_block_tables")
    if tuple(table.shape) != tuple(block_tables.shape):
        raise IndexFormatError(
            f"host_block_tables has shape {list(table.shape)}, block_tables has {list(block_tables.shape)}"
        )
    return table


def _pad(rows):
    table = np.zeros((len(rows), max(map(len, rows), default=0)), np.int32)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table
