"""`build_index` of the `tree_attention` format."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from attnloom.block_tables import padded_table
from attnloom.errors import IndexFormatError
from attnloom.index import ComposedIndex, Level
from attnloom.index_arrays import as_integers, batch_lengths, check_page_size, is_tensor

from attnloom_tree_attention.trees import check_parents, parents_of_choices, tree_of


def build_index(qo_lens, kv_lens, page_size: int, *, block_tables, parents=None, choices=None) -> ComposedIndex:
    """The index of a verification step: each request's query tokens are a tree of drafts at the end of its keys.

    Level 0 holds the committed keys, before the tree, for all tokens of the request; level 1 the tree, where a token
    sees its ancestors and itself. A token's position is the committed length plus its depth, so siblings share one.

    Args:
        qo_lens: host integers, tokens of each request's tree, may be 0.
        kv_lens: host integers, keys of each request, the tree's tokens included (the last `qo_len`, in tree order).
        page_size: slots of a page.
        block_tables: padded `[requests, max_pages]` page ids, as `page_table` takes them.
        parents: for each request the parents of its tokens, i32[qo_len]: an earlier token of the tree, or -1 for a
            root; none: each token follows the one before. Or one flat array of them all, one request after another.
        choices: one tree for all requests, as paths from the root (`parents_of_choices`), whose token 0 is the root.

    Raises:
        IndexFormatError: for parents that are out of range, come after their children or go round in a circle, or for
            lengths that contradict each other.
    """
    page_size = check_page_size(page_size)
    qo_len, kv_len, qo_indptr, token_request = batch_lengths(qo_lens, kv_lens)
    pages = padded_table(block_tables, len(kv_len))
    pages.check_capacity(kv_len, page_size)
    committed = kv_len - qo_len
    if (short := committed < 0).any():
        at = int(short.argmax())
        raise IndexFormatError(f"kv_lens[{at}] is {kv_len[at]}, less than the {qo_len[at]} token(s) of its tree")
    flat = _flat_parents(parents, choices, qo_len, qo_indptr)
    check_parents(flat, qo_indptr, token_request)
    trees = [tree_of(flat[begin:end]) for begin, end in pairwise(qo_indptr.tolist())]
    depths = np.concatenate([tree.depth for tree in trees]) if trees else np.zeros(0, np.int32)
    positions = depths + committed[token_request]
    mask_bits, mask_begin = _joined_bits(trees)
    zeros = np.zeros(len(kv_len), np.int32)
    shared = {"row_indptr": qo_indptr, "indices": pages.indices, "per_head": pages.per_head}
    before = Level(kv_len=committed, kv_start=zeros, kv_offset=zeros, page_begin=pages.begin, **shared)
    tree = Level(
        kv_len=qo_len,
        kv_start=committed,
        kv_offset=committed % page_size,
        page_begin=pages.begin + committed // page_size,
        mask_bits=mask_bits,
        mask_begin=mask_begin,
        key_pos=positions,
        key_pos_begin=qo_indptr[:-1],
        **shared,
    )
    return ComposedIndex(
        page_size=page_size,
        qo_indptr=qo_indptr,
        kv_len=kv_len,
        token_request=token_request,
        q_pos=positions,
        levels=(before, tree),
    ).trusted()


def _flat_parents(parents, choices, qo_len, qo_indptr):
    """i32[T]: the parents of all requests, one request after another, each counting from its own first token."""
    if (parents is None) == (choices is None):
        raise IndexFormatError("give either parents or choices")
    if choices is not None:
        tree = parents_of_choices(choices)
        if (other := (qo_len != len(tree)) & (qo_len != 0)).any():
            at = int(other.argmax())
            raise IndexFormatError(f"qo_lens[{at}] is {qo_len[at]}, choices with their root are {len(tree)} token(s)")
        return np.tile(tree, np.count_nonzero(qo_len))
    if (is_tensor(parents) or isinstance(parents, np.ndarray)) and len(parents.shape) == 1:
        flat = as_integers(parents, "parents")
        if len(flat) != qo_indptr[-1]:
            raise IndexFormatError(f"parents has {len(flat)} element(s), the trees have {qo_indptr[-1]} token(s)")
        return flat
    if not hasattr(parents, "__len__") or isinstance(parents, (str, bytes, dict)):
        raise IndexFormatError(f"parents must hold a list of parents for each request, got {parents!r}")
    if len(parents) != len(qo_len):
        raise IndexFormatError(f"parents is of {len(parents)} request(s), the batch has {len(qo_len)}")
    listed = []
    for request, (each, tokens) in enumerate(zip(parents, qo_len.tolist(), strict=True)):
        each = np.arange(-1, tokens - 1, dtype=np.int32) if each is None else as_integers(each, f"parents[{request}]")
        if len(each) != tokens:
            expected = f"qo_lens[{request}] is {tokens}"
            raise IndexFormatError(f"parents[{request}] has {len(each)} token(s), {expected}")
        listed.append(each)
    return np.concatenate(listed) if listed else np.zeros(0, np.int32)


def _joined_bits(trees):
    """`(mask_bits, mask_begin)` of a level whose rows are `trees`; equal trees share their words."""
    words, places, total = [], {}, 0
    for tree in trees:
        if id(tree) not in places:
            places[id(tree)] = total
            words.append(tree.bits)
            total += len(tree.bits)
    begin = np.array([places[id(tree)] for tree in trees], np.int64)
    return (np.concatenate(words) if words else np.zeros(0, np.uint32)), begin
