"""The `page_table` format against lists of slots written out by hand."""

import numpy as np
import pytest
import torch
from attnloom import storage_format
from attnloom.errors import IndexFormatError
from attnloom_page_table.build import build_index
from hypothesis import given, settings
from hypothesis import strategies as st


def slots_by_hand(rows, kv_lens, page_size):
    return [[rows[r][j // page_size] * page_size + j % page_size for j in range(n)] for r, n in enumerate(kv_lens)]


def assert_sees(index, qo_lens, kv_lens, slots):
    """Every query token of request r sees exactly `slots[r]`, in order."""
    index.validate()
    dense = index.to_dense()
    requests = np.repeat(np.arange(len(qo_lens)), qo_lens)
    for token, request in enumerate(requests):
        n = kv_lens[request]
        assert dense.slot[token, :n].tolist() == slots[request]
        assert dense.visible[token].tolist() == [True] * n + [False] * (dense.visible.shape[1] - n)
        assert dense.kv_pos[token, :n].tolist() == list(range(n))
        assert (dense.slot[token, n:] == -1).all()


@st.composite
def batches(draw):
    page_size = draw(st.sampled_from([1, 2, 3, 16]))
    lens = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=5))
    qo, kv = [q for q, _ in lens], [k for _, k in lens]
    width = max([-(-k // page_size) for k in kv], default=0) + draw(st.integers(0, 2))
    table = np.random.default_rng(draw(st.integers(0, 9))).permutation(len(lens) * width + 1)[: len(lens) * width]
    return page_size, qo, kv, table.reshape(len(lens), width)


@settings(max_examples=40, deadline=None)
@given(
    batches(), st.sampled_from(["int32", "int64", "strided", "transposed", "torch", "torch strided", "lists", "csr"])
)
def test_every_way_to_give_pages_shows_the_same_slots(batch, way):
    page_size, qo, kv, table = batch
    needs = {"block_tables": table}
    if way == "int32":
        needs["block_tables"] = table.astype(np.int32)
    elif way == "strided":
        wide = np.full((len(table), table.shape[1] + 3), -7, np.int32)
        wide[:, : table.shape[1]] = table
        needs["block_tables"] = wide[:, : table.shape[1]]
    elif way == "transposed":
        needs["block_tables"] = np.ascontiguousarray(table.T).T
    elif way == "torch":
        needs["block_tables"] = torch.from_numpy(table.copy())
    elif way == "torch strided":
        wide = torch.full((2 * len(table), table.shape[1] + 1), -7)
        wide[::2, 1:] = torch.from_numpy(table.copy())
        needs["block_tables"] = wide[::2, 1:]
    elif way == "lists":
        needs["block_tables"] = [row.tolist() for row in table]
    elif way == "csr":
        counts = [-(-k // page_size) for k in kv]
        flat = [page for row, count in zip(table, counts, strict=True) for page in row[:count]]
        last = [k - (count - 1) * page_size if count else 0 for k, count in zip(kv, counts, strict=True)]
        needs = {"kv_indptr": np.cumsum([0, *counts]), "kv_indices": flat, "last_page_len": last}
    index = build_index(qo, None if way == "csr" else kv, page_size, **needs)
    assert_sees(index, qo, kv, slots_by_hand(table.tolist(), kv, page_size))
    index.check_pages(table.size + 1)


def test_tables_are_used_in_place():
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    index = build_index([1, 1], [4, 2], 2, block_tables=table[:2, :2])
    assert np.shares_memory(index.levels[0].indices, table)
    tensor = torch.arange(12).reshape(3, 4)
    index = build_index([1, 1], [4, 2], 2, block_tables=tensor[1:, 1:])
    tensor[1, 1] = 99
    assert index.levels[0].indices[0] == 99
    assert index.to_dense().slot[0].tolist() == [198, 199, 12, 13]


def test_a_list_for_each_head():
    table = np.arange(8, dtype=np.int32).reshape(2, 2, 2)
    index = build_index([1, 1], [2, 1], 1, block_tables=table)
    index.validate()
    index.check_pages(8)
    assert index.to_dense(kv_head=0).slot.tolist() == [[0, 1], [2, -1]]
    assert index.to_dense(kv_head=1).slot.tolist() == [[4, 5], [6, -1]]


def test_unused_entries_may_hold_anything():
    index = build_index([1, 1], [3, 0], 2, block_tables=[[5, 1, -99], [-1, 77, 77]])
    index.check_pages(6)
    with pytest.raises(IndexFormatError, match=r"row 0 uses page 5 \(entry 0 of indices\), the cache has 5"):
        index.check_pages(5)
    with pytest.raises(IndexFormatError, match="row 0 uses page -1"):
        build_index([1], [3], 2, block_tables=[[0, -1]]).check_pages(9)


def test_positions_of_pages_and_queries():
    table = np.array([[4, 5, 6]], np.int32)
    index = build_index([2], [5], 2, block_tables=table, block_pos=[[10, 20, 30]], q_pos=[7, 8])
    index.validate()
    dense = index.to_dense()
    assert dense.kv_pos[0].tolist() == [10, 11, 20, 21, 30]
    assert dense.q_pos.tolist() == [7, 8]
    wide = np.arange(8, dtype=np.int32).reshape(2, 4)[:, :2]
    index = build_index([1, 1], [4, 3], 2, block_tables=wide, block_pos=[[0, 5], [9, 3]])
    assert index.to_dense().kv_pos.tolist() == [[0, 1, 5, 6], [9, 10, 3, -1]]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=4), st.randoms(use_true_random=False))
def test_masks_hide_pairs(lens, random):
    qo, kv = [q for q, _ in lens], [k for _, k in lens]
    masks = [np.array([random.random() < 0.5 for _ in range(q * k)], bool).reshape(q, k) for q, k in lens]
    table = np.arange(len(lens) * 3).reshape(len(lens), 3)
    index = build_index(qo, kv, 16, block_tables=table, mask=masks)
    flat = np.concatenate([*[m.reshape(-1) for m in masks], np.zeros(0, bool)])
    same = build_index(qo, kv, 16, block_tables=table, mask=torch.from_numpy(flat))
    for built in (index, same):
        built.validate()
        dense, token = built.to_dense(), 0
        for mask in masks:
            for row in mask:
                assert dense.visible[token, : len(row)].tolist() == row.tolist()
                token += 1
    if len(lens):
        partly = build_index(qo, kv, 16, block_tables=table, mask=[None, *masks[1:]]).to_dense()
        assert partly.visible[: qo[0], : kv[0]].all()


TABLE = np.zeros((2, 2), np.int32)


@pytest.mark.parametrize(
    ("args", "needs", "message"),
    [
        (([1, 1], [5, 1], 2), {"block_tables": TABLE}, r"kv_lens\[0\] is 5, its 2 page\(s\) of 2 slots hold 4"),
        (([1, 1], [3, -1], 2), {"block_tables": TABLE}, r"kv_lens\[1\] is -1"),
        (([-1, 1], [3, 1], 2), {"block_tables": TABLE}, r"qo_lens\[0\] is -1"),
        (([1, 1], [3], 2), {"block_tables": TABLE}, r"qo_lens has 2 request\(s\), kv_lens has 1"),
        (([1], [3], 2), {"block_tables": TABLE}, r"block_tables has 2 row\(s\), the batch has 1"),
        (([1, 1], [3.0, 1.0], 2), {"block_tables": TABLE}, "kv_lens has dtype float64"),
        (([1, 1], [3, 1], 2), {"block_tables": TABLE.astype(float)}, "block_tables has dtype float64"),
        (([1, 1], [3, 1], 0), {"block_tables": TABLE}, "page_size is 0"),
        (([1, 1], [3, 1], 2.0), {"block_tables": TABLE}, "page_size is 2.0"),
        (([1, 1], [3, 1], 2), {"block_tables": TABLE[0]}, r"block_tables has shape \[2\]"),
        (([1, 1], None, 2), {"block_tables": TABLE}, "kv_lens is none"),
        (([1, 1], [3, 1], 2), {}, "no pages"),
        (([1, 1], [3, 2**31], 2), {"block_tables": TABLE}, "kv_lens holds 2147483648, which int32 cannot"),
        (([2**30, 2**30], [3, 1], 2), {"block_tables": TABLE}, "the sum of qo_lens is 2147483648"),
        (([1, 1], [3, 1], 2), {"block_tables": TABLE, "q_pos": [1]}, r"q_pos has 1 position\(s\), the batch has 2"),
        (([1, 1], [3, 1], 2), {"block_tables": TABLE, "block_pos": [[1], [2]]}, r"block_pos has shape \[2, 1\]"),
        (([1, 1], [3, 1], 2), {"block_tables": TABLE, "mask": [None]}, r"mask has 1 mask\(s\)"),
        (([1, 1], [3, 1], 2), {"block_tables": TABLE, "mask": 3}, "mask must hold a bool array .* got 3"),
        (([1, 1], [3, 1], 2), {"block_tables": TABLE, "mask": "ab"}, "mask must hold a bool array .* got 'ab'"),
        (
            ([1, 1], [3, 1], 2),
            {"block_tables": TABLE, "mask": [np.ones((1, 4), bool), None]},
            r"mask\[0\] is bool of shape \[1, 4\], expected bool of shape \[1, 3\]",
        ),
        (
            ([1], None, 4),
            {"kv_indptr": [0, 2], "kv_indices": [1, 2], "last_page_len": [5]},
            r"last_page_len\[0\] is 5, the page size is 4",
        ),
        (([1], None, 4), {"kv_indptr": [0, 2], "kv_indices": [1, 2], "last_page_len": [0]}, r"last_page_len\[0\] is 0"),
        (
            ([1], [7], 4),
            {"kv_indptr": [0, 2], "kv_indices": [1, 2], "last_page_len": [4]},
            r"kv_lens\[0\] is 7, 2 page\(s\) with last_page_len 4 hold 8",
        ),
        (([1], [9], 4), {"kv_indptr": [0, 2], "kv_indices": [1, 2]}, r"kv_lens\[0\] is 9, its 2 page\(s\)"),
        (([1], [7], 4), {"kv_indptr": [0, 3], "kv_indices": [1, 2]}, "kv_indptr ends at 3"),
        (([1, 1], [1, 1], 4), {"kv_indptr": [0, 2, 1], "kv_indices": [1, 2]}, "kv_indptr decreases from 2 to 1"),
        (([1, 1], [1, 1], 4), {"kv_indptr": [0, 1], "kv_indices": [1, 2]}, r"kv_indptr is of 1 request\(s\)"),
    ],
)
def test_contradictions_are_named(args, needs, message):
    with pytest.raises(IndexFormatError, match=message):
        build_index(*args, **needs)


def test_lengths_of_any_integer_type():
    expected = build_index([1, 1], [3, 1], 2, block_tables=TABLE).to_dense().slot
    for dtype in (np.int64, np.uint32, np.int16, np.uint8):
        lens = np.array([3, 1], dtype)
        index = build_index(np.ones(2, dtype), lens, 2, block_tables=TABLE)
        assert index.kv_len.dtype == np.int32
        assert np.array_equal(index.to_dense().slot, expected)
    index = build_index(torch.ones(2, dtype=torch.int64), torch.tensor([3, 1]), np.int64(2), block_tables=TABLE)
    assert np.array_equal(index.to_dense().slot, expected)


def test_the_hook_names_the_format():
    from attnloom_page_table.plugin import attnloom_storage_formats

    (page_table,) = attnloom_storage_formats()
    assert page_table.build_index([1, 1], [3, 1], 2, block_tables=TABLE).num_tokens == 2


def test_an_argument_that_it_does_not_take():
    with pytest.raises(IndexFormatError, match="takes no 'block_table'; did you mean 'block_tables'"):
        storage_format("page_table").build_index([1], [1], 16, block_table=[[0]])
