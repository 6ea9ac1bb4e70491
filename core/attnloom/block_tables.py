"""Block tables, the page lists of a batch, in the shapes cache managers keep them: read in place where they can be."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from attnloom.errors import IndexFormatError
from attnloom.index_arrays import I64, as_integers, is_tensor, offsets, page_ids


@frozen(eq=False)
class PageLists:
    """The pages of each request.

    Attributes:
        indices: i32 or i64 page ids, `[nnz]` or `[num_kv_heads, nnz]`, where possible the caller's own memory.
        begin: i64[B], where each request's pages start.
        counts: i64[B] pages of each request, or one int for all.
    """

    indices: object
    begin: np.ndarray
    counts: object

    @property
    def per_head(self) -> bool:
        """Whether every kv head has its own list."""
        return len(self.indices.shape) == 2

    def check_capacity(self, kv_len, page_size: int) -> None:
        """Raises `IndexFormatError` where a request has more keys than its pages have slots."""
        room = self.counts * page_size
        if isinstance(room, int) and (not len(kv_len) or kv_len[kv_len.argmax()] <= room):
            return
        short = kv_len > room
        if short.any():
            at = int(short.argmax())
            pages = int(np.broadcast_to(self.counts, kv_len.shape)[at])
            raise IndexFormatError(
                f"kv_lens[{at}] is {kv_len[at]}, its {pages} page(s) of {page_size} slots hold {pages * page_size}"
            )


def padded_table(block_tables, requests: int) -> PageLists:
    """The page lists of a padded table; padding may hold anything.

    Args:
        block_tables: `[requests, max_pages]` or, with a list for each head, `[num_kv_heads, requests, max_pages]` page
            ids, int32 or int64, numpy or torch on any device. Used in place when the last stride is 1 (and, with heads,
            when it is contiguous), else copied. Or a list with a list of page ids for each request.

    Raises:
        IndexFormatError: for other shapes, dtypes, or numbers of rows.
    """
    if isinstance(block_tables, (list, tuple)):
        return _ragged_lists(block_tables, requests)
    if is_tensor(block_tables) and getattr(block_tables, "is_sparse", False):
        raise IndexFormatError("block_tables is a sparse tensor, expected a dense one: use .to_dense()")
    table = page_ids(block_tables, "block_tables")
    shape = table.shape
    if len(shape) not in (2, 3):
        raise IndexFormatError(f"block_tables has shape {list(shape)}, expected [requests, max_pages]")
    if shape[-2] != requests:
        raise IndexFormatError(f"block_tables has {shape[-2]} row(s), the batch has {requests} request(s)")
    width = shape[-1]
    if len(shape) == 3:
        return PageLists(_contiguous(table).reshape(shape[0], -1), _begins(requests, width), width)
    contiguous = table.is_contiguous() if is_tensor(table) else table.flags.c_contiguous
    if contiguous:
        return PageLists(table.reshape(-1), _begins(requests, width), width)
    row_stride, last_stride = _strides(table)
    if last_stride != 1 or row_stride < 0:
        return PageLists(_contiguous(table).reshape(-1), _begins(requests, width), width)
    return PageLists(_flat_view(table, (requests - 1) * row_stride + width), _begins(requests, row_stride), width)


def ragged_table(kv_indptr, kv_indices) -> PageLists:
    """The page lists of a ragged table: request `r` has `kv_indices[kv_indptr[r]:kv_indptr[r + 1]]`.

    Raises:
        IndexFormatError: for offsets that do not start at 0, decrease, or pass the end of `kv_indices`.
    """
    indptr = as_integers(kv_indptr, "kv_indptr", I64)
    indices = page_ids(kv_indices, "kv_indices")
    if not len(indptr) or indptr[0] != 0:
        raise IndexFormatError(f"kv_indptr starts with {list(indptr[:1])}, expected [0]")
    counts = np.diff(indptr)
    if len(counts) and counts[counts.argmin()] < 0:
        at = int((counts < 0).argmax())
        raise IndexFormatError(f"kv_indptr decreases from {indptr[at]} to {indptr[at + 1]} at {at + 1}")
    if len(indices.shape) != 1 or indptr[-1] > indices.shape[0]:
        raise IndexFormatError(f"kv_indptr ends at {indptr[-1]}, kv_indices has shape {list(indices.shape)}")
    if _strides(indices)[-1] != 1:
        indices = _contiguous(indices)
    return PageLists(indices, indptr[:-1], counts)


def _begins(requests: int, row_stride: int):
    """i64[requests]: `row_stride` apart."""
    if not row_stride:
        return np.zeros(requests, np.int64)
    return np.arange(0, requests * row_stride, row_stride, dtype=np.int64)


def _contiguous(array):
    """The array, copied unless it is dense already: a mere reshape may keep its strides."""
    return array.contiguous() if is_tensor(array) else np.ascontiguousarray(array)


def _strides(array):
    """In elements; -1 where it is no whole number of them."""
    if is_tensor(array):
        return array.stride()
    return [stride // array.itemsize if stride % array.itemsize == 0 else -1 for stride in array.strides]


def _flat_view(table, extent: int):
    """All that lies between the first and the last element of a table whose rows are apart, as one dimension."""
    if is_tensor(table):
        return table.as_strided((extent,), (1,))
    return np.lib.stride_tricks.as_strided(table, (extent,), (table.itemsize,), writeable=False)


def _ragged_lists(rows, requests: int) -> PageLists:
    if len(rows) != requests:
        raise IndexFormatError(f"block_tables has {len(rows)} row(s), the batch has {requests} request(s)")
    rows = [page_ids(row, f"block_tables[{at}]") for at, row in enumerate(rows)]
    if any(is_tensor(row) or row.ndim != 1 for row in rows):
        raise IndexFormatError("block_tables as a list holds a list of page ids for each request; got other items")
    counts = np.array([len(row) for row in rows], np.int64)
    indices = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    return PageLists(page_ids(indices), offsets(counts, "pages")[:-1].astype(np.int64), counts)
