"""`build_index` of the `page_table` format."""

from __future__ import annotations

import numpy as np
from attnloom.block_tables import PageLists, padded_table, ragged_table
from attnloom.errors import IndexFormatError
from attnloom.index import ComposedIndex, Level
from attnloom.index_arrays import as_integers, batch_lengths, check_page_size, positions

from attnloom_page_table.masks import pack_masks


def build_index(
    qo_lens,
    kv_lens,
    page_size: int,
    *,
    block_tables=None,
    kv_indptr=None,
    kv_indices=None,
    last_page_len=None,
    q_pos=None,
    block_pos=None,
    mask=None,
) -> ComposedIndex:
    """The index of a batch whose keys lie in pages.

    Give `block_tables`, or `kv_indptr` with `kv_indices`. Page ids are not read here: `ComposedIndex.check_pages` does.

    Args:
        qo_lens: host integers, one a request, may be 0.
        kv_lens: host integers, one a request, may be 0; none: as `last_page_len` says.
        page_size: slots of a page.
        block_tables: padded `[requests, max_pages]` page ids, or `[num_kv_heads, requests, max_pages]`; int32 or int64,
            numpy or torch, host or device, used in place; or a list of page ids for each request.
        kv_indptr: i32 or i64[B + 1] on the host, offsets of each request's pages in `kv_indices`.
        kv_indices: i32 or i64[nnz] page ids, host or device, used in place.
        last_page_len: host integers[B], keys in each request's last page; only with `kv_indptr`.
        q_pos: i32[T] position of each query token; none: bottom-right aligned.
        block_pos: positions of the pages' slots 0, shaped as `block_tables` or `kv_indices`; none: consecutive.
        mask: which keys each query token sees: a bool array `[qo_len, kv_len]` for each request (none for all), or one
            flat bool array of them all, one request after another.

    Raises:
        IndexFormatError: for lengths, tables, positions or masks that contradict each other.
    """
    page_size = check_page_size(page_size)
    if block_tables is not None:
        if kv_indptr is not None or kv_indices is not None or last_page_len is not None:
            raise IndexFormatError("block_tables and kv_indptr/kv_indices/last_page_len were both given; give one")
        if kv_lens is None:
            raise IndexFormatError("kv_lens is none; with block_tables it is needed")
        qo_len, kv_len, qo_indptr, token_request = batch_lengths(qo_lens, kv_lens)
        pages = padded_table(block_tables, len(kv_len))
    elif kv_indptr is not None and kv_indices is not None:
        pages = ragged_table(kv_indptr, kv_indices)
        kv_lens = _kv_lens(pages.counts, kv_lens, last_page_len, page_size)
        qo_len, kv_len, qo_indptr, token_request = batch_lengths(qo_lens, kv_lens)
        if len(pages.counts) != len(kv_len):
            raise IndexFormatError(f"kv_indptr is of {len(pages.counts)} request(s), the batch has {len(kv_len)}")
    else:
        raise IndexFormatError("no pages: give block_tables, or kv_indptr and kv_indices")
    pages.check_capacity(kv_len, page_size)
    zeros = np.zeros(len(kv_len), np.int32)
    mask_bits, mask_begin = (None, None) if mask is None else pack_masks(mask, qo_len, kv_len)
    level = Level(
        row_indptr=qo_indptr,
        kv_len=kv_len,
        kv_start=zeros,
        kv_offset=zeros,
        page_begin=pages.begin,
        indices=pages.indices,
        per_head=pages.per_head,
        block_pos=None if block_pos is None else _block_positions(block_pos, pages),
        mask_bits=mask_bits,
        mask_begin=mask_begin,
    )
    return ComposedIndex(
        page_size=page_size,
        qo_indptr=qo_indptr,
        kv_len=kv_len,
        token_request=token_request,
        q_pos=positions(q_pos, len(token_request)),
        levels=(level,),
    ).trusted()


def _kv_lens(counts, kv_lens, last_page_len, page_size: int):
    """Keys of each request, from `last_page_len` where it is given; the two must agree."""
    if last_page_len is None:
        if kv_lens is None:
            raise IndexFormatError("give kv_lens or last_page_len")
        return kv_lens
    last = as_integers(last_page_len, "last_page_len")
    if len(last) != len(counts):
        raise IndexFormatError(f"last_page_len has {len(last)} element(s), kv_indptr is of {len(counts)} request(s)")
    wrong = (last > page_size) | (last < (counts > 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise IndexFormatError(
            f"last_page_len[{at}] is {last[at]}, the page size is {page_size} and the request has {counts[at]} page(s)"
        )
    derived = np.where(counts > 0, (counts - 1) * page_size + last, 0)
    if kv_lens is not None:
        kv_len = as_integers(kv_lens, "kv_lens")
        if len(kv_len) == len(derived) and (differs := kv_len != derived).any():
            at = int(differs.argmax())
            raise IndexFormatError(
                f"kv_lens[{at}] is {kv_len[at]}, {counts[at]} page(s) with last_page_len {last[at]} hold {derived[at]}"
            )
        return kv_lens
    return derived


def _block_positions(block_pos, pages: PageLists):
    """`block_pos` laid out as `pages.indices` is."""
    nnz = pages.indices.shape[-1]
    if isinstance(pages.counts, int):
        rows = as_integers(block_pos, "block_pos", ndim=2)
        if rows.shape != (len(pages.begin), pages.counts):
            expected = [len(pages.begin), pages.counts]
            raise IndexFormatError(f"block_pos has shape {list(rows.shape)}, block_tables is {expected}")
        flat = np.zeros(nnz, np.int32)
        flat[(pages.begin[:, None] + np.arange(pages.counts)).reshape(-1)] = rows.reshape(-1)
        return flat
    flat = as_integers(block_pos, "block_pos")
    if len(flat) != nnz:
        raise IndexFormatError(f"block_pos has {len(flat)} position(s), kv_indices has {nnz}")
    return flat
