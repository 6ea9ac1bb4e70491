"""The `dense` storage format: keys that lie one after another in memory, ragged or padded.

It is the identity page table: slot `s` of the cache is slot `s % page_size` of page `s // page_size`. So a ragged
`[tokens, heads, dim]` tensor is a cache of one page, `k.unsqueeze(0)` with `page_size = tokens`, and a padded
`[batch, length, heads, dim]` tensor is a cache as it stands, with `page_size = length` and
`kv_starts = [0, length, 2 * length, ...]`.
"""

from __future__ import annotations

import numpy as np

from attnloom.errors import IndexFormatError
from attnloom.index import ComposedIndex, Level
from attnloom.index_arrays import I64, as_integers, batch_lengths, check_page_size, positions


def build_index(qo_lens, kv_lens, page_size: int | None = None, *, kv_starts=None, q_pos=None) -> ComposedIndex:
    """The index of a batch whose requests' keys are contiguous.

    Args:
        qo_lens, kv_lens: host integers, one a request, either may be 0.
        page_size: slots of a page of the cache; none: one page that holds all the keys.
        kv_starts: i64[B] slot of each request's first key; none: one request after another. Requests may overlap.
        q_pos: i32[T] position of each query token; none: bottom-right aligned.

    Raises:
        IndexFormatError: for lengths or starts that are negative, too large or unequal in number.
    """
    _, kv_len, qo_indptr, token_request = batch_lengths(qo_lens, kv_lens)
    if kv_starts is None:
        starts = np.zeros(len(kv_len) + 1, np.int64)
        np.cumsum(kv_len, out=starts[1:])
        starts, slots = starts[:-1], int(starts[-1])
    else:
        starts = as_integers(kv_starts, "kv_starts", I64)
        if len(starts) != len(kv_len):
            raise IndexFormatError(f"kv_starts has {len(starts)} start(s), the batch has {len(kv_len)} request(s)")
        if len(starts) and starts.min() < 0:
            raise IndexFormatError(f"kv_starts[{starts.argmin()}] is {starts.min()}, expected at least 0")
        slots = int((starts + kv_len).max(initial=0))
    page_size = check_page_size(max(slots, 1) if page_size is None else page_size)
    first_page, offset = np.divmod(starts, page_size)
    level = Level(
        row_indptr=qo_indptr,
        kv_len=kv_len,
        kv_start=np.zeros(len(kv_len), np.int32),
        kv_offset=offset.astype(np.int32),
        page_begin=first_page,
        indices=np.arange(-(-slots // page_size), dtype=np.int32),
    )
    return ComposedIndex(
        page_size=page_size,
        qo_indptr=qo_indptr,
        kv_len=kv_len,
        token_request=token_request,
        q_pos=positions(q_pos, len(token_request)),
        levels=(level,),
    ).trusted()


def example(rng, qo_lens, kv_lens, page_size: int):
    """`(needs, slots)` of a batch for tests: requests in any order in memory, with gaps."""
    starts = np.zeros(len(kv_lens), np.int64)
    end = 0
    for request in rng.permutation(len(kv_lens)):
        starts[request] = end + int(rng.integers(0, 3))
        end = starts[request] + int(kv_lens[request])
    slots = [start + np.arange(int(keys)) for start, keys in zip(starts, kv_lens, strict=True)]
    return {"kv_starts": starts}, slots
