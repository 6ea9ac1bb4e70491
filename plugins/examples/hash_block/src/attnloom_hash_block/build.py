"""`build_index` of the `hash_block` format."""

import numpy as np
from attnloom.errors import IndexFormatError
from attnloom.index import ComposedIndex, Level
from attnloom.index_arrays import batch_lengths, check_page_size


def build_index(qo_lens, kv_lens, page_size, *, hashes, blocks, tails) -> ComposedIndex:
    """The index of a batch whose full blocks are known by the hash of the tokens up to their end.

    Args:
        qo_lens, kv_lens: host integers, one a request, may be 0.
        page_size: tokens of a block.
        hashes: for each request the hashes of its full blocks, in order.
        blocks: hash -> page, for all hashes that occur.
        tails: for each request the page of its last, partial block; -1 where there is none.

    Raises:
        IndexFormatError: a hash that is in no block, or lengths that contradict the blocks.
    """
    page_size = check_page_size(page_size)
    _, kv_len, qo_indptr, token_request = batch_lengths(qo_lens, kv_lens)
    if not len(hashes) == len(tails) == len(kv_len):
        raise IndexFormatError(
            f"hashes is of {len(hashes)} request(s), tails of {len(tails)}, the batch has {len(kv_len)}"
        )
    pages = [
        _pages(request, own, blocks, int(tail), int(keys), page_size)
        for request, (own, tail, keys) in enumerate(zip(hashes, tails, kv_len, strict=True))
    ]
    counts = np.array([len(own) for own in pages], np.int64)
    level = Level(
        row_indptr=qo_indptr,
        kv_len=kv_len,
        kv_start=np.zeros(len(kv_len), np.int32),
        kv_offset=np.zeros(len(kv_len), np.int32),
        page_begin=np.cumsum(counts) - counts,
        indices=np.array([page for own in pages for page in own], np.int32),
    )
    return ComposedIndex(
        page_size=page_size, qo_indptr=qo_indptr, kv_len=kv_len, token_request=token_request, levels=[level]
    )


def _pages(request: int, hashes, blocks, tail: int, keys: int, page_size: int) -> list[int]:
    """The pages of one request."""
    full, rest = divmod(keys, page_size)
    if len(hashes) != full:
        raise IndexFormatError(
            f"kv_lens[{request}] is {keys}, {full} full block(s) of {page_size}; {len(hashes)} hash(es) are given"
        )
    missing = [one for one in hashes if one not in blocks]
    if missing:
        raise IndexFormatError(f"request {request}: block {missing[0]!r} is not in the cache")
    if rest and tail < 0:
        raise IndexFormatError(
            f"request {request}: its last {rest} key(s) need a tail block, tails[{request}] is {tail}"
        )
    return [blocks[one] for one in hashes] + ([tail] if rest else [])
