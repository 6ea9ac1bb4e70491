"""The `tree_attention` format: a token sees the committed keys, its ancestors and itself, and nothing else."""

import numpy as np
import pytest
import torch
from attnloom.errors import IndexFormatError
from attnloom_tree_attention import parents_of_choices
from attnloom_tree_attention.build import build_index
from hypothesis import given, settings
from hypothesis import strategies as st


def ancestors(parents, token):
    """The token and all above it, root first."""
    return [] if token < 0 else [*ancestors(parents, parents[token]), token]


@st.composite
def batches(draw):
    page_size = draw(st.sampled_from([1, 3, 16]))
    sizes = draw(st.lists(st.integers(0, 40), max_size=4))
    trees = [[draw(st.integers(-1, token - 1)) for token in range(size)] for size in sizes]
    committed = [draw(st.integers(0, 20)) for _ in trees]
    return page_size, trees, committed


@settings(max_examples=50, deadline=None)
@given(batches(), st.sampled_from(["lists", "flat", "torch"]))
def test_a_token_sees_its_past_and_its_ancestors(batch, way):
    page_size, trees, committed = batch
    qo = [len(tree) for tree in trees]
    kv = [before + size for before, size in zip(committed, qo, strict=True)]
    width = max([-(-keys // page_size) for keys in kv], default=0)
    table = np.random.default_rng(0).permutation(len(trees) * width).reshape(len(trees), width)
    flat = np.array([parent for tree in trees for parent in tree], np.int64)
    parents = {"lists": trees, "flat": flat, "torch": torch.from_numpy(flat)}[way]
    index = build_index(qo, kv, page_size, block_tables=table, parents=parents)
    index.validate()
    index.check_pages(max(table.size, 1))
    dense, token = index.to_dense(), 0
    for request, (tree, before) in enumerate(zip(trees, committed, strict=True)):
        depth = [len(ancestors(tree, at)) - 1 for at in range(len(tree))]
        for at in range(len(tree)):
            seen = [*range(before), *(before + up for up in ancestors(tree, at))]
            assert np.flatnonzero(dense.visible[token]).tolist() == seen
            assert dense.q_pos[token] == before + depth[at]
            assert dense.kv_pos[token, : kv[request]].tolist() == [*range(before), *(before + up for up in depth)]
            slots = [table[request, j // page_size] * page_size + j % page_size for j in range(kv[request])]
            assert dense.slot[token, : kv[request]].tolist() == slots
            token += 1


def test_medusa_choices():
    choices = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
    parents = parents_of_choices(choices)
    assert parents.tolist() == [-1, 0, 0, 1, 1, 2, 3]
    table = np.arange(9).reshape(3, 3)
    index = build_index([7, 0, 7], [10, 4, 7], 4, block_tables=table, choices=choices[::-1])
    index.validate()
    dense = index.to_dense()
    assert dense.q_pos[:7].tolist() == [3, 4, 4, 5, 5, 5, 6]
    assert np.flatnonzero(dense.visible[6]).tolist() == [0, 1, 2, 3, 4, 6, 9]
    assert index.levels[1].mask_begin[0] == index.levels[1].mask_begin[2], "equal trees share their bits"


def test_no_tree_is_a_chain():
    index = build_index([3], [5], 4, block_tables=[[0, 1]], parents=[None])
    dense = index.to_dense()
    assert [np.flatnonzero(row).tolist() for row in dense.visible] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert dense.q_pos.tolist() == [2, 3, 4]
    assert dense.kv_pos[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("args", "needs", "message"),
    [
        (([2], [5]), {"parents": [[-1, 1]]}, r"parents\[0\] goes round in a circle: 1 -> 1"),
        (([3], [5]), {"parents": [[-1, 2, 1]]}, "in a circle: 1 -> 2 -> 1"),
        (([3], [5]), {"parents": [[-1, 2, 0]]}, r"parents\[0\]\[1\] is 2; a parent comes before its children"),
        (([2], [5]), {"parents": [[-1, 7]]}, r"parents\[0\]\[1\] is 7; a tree of 2 token\(s\)"),
        (([2], [5]), {"parents": [[-2, 0]]}, r"parents\[0\]\[0\] is -2"),
        (([2], [5]), {"parents": [[-1]]}, r"parents\[0\] has 1 token\(s\), qo_lens\[0\] is 2"),
        (([2], [5]), {"parents": []}, r"parents is of 0 request\(s\)"),
        (([2], [5]), {"parents": np.zeros(3, np.int32)}, r"parents has 3 element\(s\), the trees have 2"),
        (([2], [5]), {"parents": [[0.0, 1.0]]}, "dtype float64"),
        (([2], [1]), {"parents": [[-1, 0]]}, r"kv_lens\[0\] is 1, less than the 2 token\(s\)"),
        (([2], [9]), {"parents": [[-1, 0]]}, r"kv_lens\[0\] is 9, its 2 page\(s\) of 4 slots hold 8"),
        (([2], [5]), {}, "give either parents or choices"),
        (([2], [5]), {"choices": [(0,), (1,)]}, r"qo_lens\[0\] is 2, choices with their root are 3"),
        (([2], [5]), {"choices": [(0, 1)]}, r"the path \[0, 1\] but not its front \[0\]"),
        (([2], [5]), {"choices": [(0,), (0,)]}, r"the path \[0\] twice"),
        (([2], [5]), {"choices": [()]}, "an empty path"),
        (([2], [5]), {"parents": 3}, "parents must hold a list .* got 3"),
        (([2], [5]), {"parents": "ab"}, "parents must hold a list .* got 'ab'"),
        (([2], [5]), {"parents": {}}, "parents must hold a list .* got {}"),
        (([2], [5]), {"choices": 3}, "choices must be paths of integers .* got 3"),
        (([2], [5]), {"choices": [3]}, r"choices must be paths of integers .* got \[3\]"),
        (([2], [5]), {"choices": [("a",)]}, "choices must be paths of integers"),
        (([2], [5]), {"choices": [(0.5,)]}, "choices must be paths of integers"),
        (([2], [5]), {"choices": [(-1,)]}, r"the path \[-1\], ranks are at least 0"),
    ],
)
def test_contradictions_are_named(args, needs, message):
    with pytest.raises(IndexFormatError, match=message):
        build_index(*args, 4, block_tables=[[0, 1]], **needs)


def test_empty_batch():
    index = build_index([], [], 4, block_tables=np.zeros((0, 2), np.int32), parents=[])
    index.validate()
    assert index.num_tokens == 0


def test_the_hook_names_the_format():
    from attnloom_tree_attention.plugin import attnloom_storage_formats

    (tree_attention,) = attnloom_storage_formats()
    assert tree_attention.build_index([1], [1], 2, block_tables=[[4]], parents=[[-1]]).num_tokens == 1
