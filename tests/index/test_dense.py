"""The `dense` format: slots of ragged and padded tensors; and `to_dense` against plain loops."""

import numpy as np
import pytest
from attnloom.dense import build_index
from attnloom.errors import IndexFormatError
from attnloom.index import ComposedIndex, Level
from hypothesis import given, settings
from hypothesis import strategies as st

LENS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=5)


@settings(max_examples=40, deadline=None)
@given(LENS, st.sampled_from([None, 1, 4, 64]))
def test_ragged_keys_follow_one_another(lens, page_size):
    qo, kv = [q for q, _ in lens], [k for _, k in lens]
    index = build_index(qo, kv, page_size)
    index.validate()
    index.check_pages(-(-sum(kv) // index.page_size))
    dense, token = index.to_dense(), 0
    for request, (q, k) in enumerate(lens):
        start = sum(kv[:request])
        for _ in range(q):
            assert dense.slot[token, :k].tolist() == list(range(start, start + k))
            assert dense.visible[token].sum() == k
            token += 1


def test_padded_keys_are_pages_as_they_stand():
    index = build_index([1, 2, 1], [3, 5, 0], 5, kv_starts=[0, 5, 10])
    index.validate()
    assert index.levels[0].kv_offset.tolist() == [0, 0, 0]
    assert index.to_dense().slot.tolist() == [[0, 1, 2, -1, -1], [5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [-1] * 5]


def test_requests_may_read_the_same_keys():
    index = build_index([1, 1], [4, 3], 4, kv_starts=[2, 3], q_pos=[9, 8])
    index.validate()
    assert index.to_dense().slot.tolist() == [[2, 3, 4, 5], [3, 4, 5, -1]]
    assert index.q_pos.tolist() == [9, 8]


def test_nothing():
    for index in (build_index([], []), build_index([2], [0])):
        index.validate()
        assert index.page_size == 1


@pytest.mark.parametrize(
    ("args", "needs", "message"),
    [
        (([1], [3]), {"kv_starts": [0, 1]}, r"kv_starts has 2 start\(s\), the batch has 1"),
        (([1], [3]), {"kv_starts": [-1]}, r"kv_starts\[0\] is -1"),
        (([1], [3]), {"kv_starts": [0.5]}, "kv_starts has dtype float64"),
        (([1], [3]), {"q_pos": [0, 1]}, r"q_pos has 2 position\(s\)"),
        (([1], [3], 0), {}, "page_size is 0"),
        (([1], [-3]), {}, r"kv_lens\[0\] is -3"),
    ],
)
def test_contradictions_are_named(args, needs, message):
    with pytest.raises(IndexFormatError, match=message):
        build_index(*args, **needs)


@st.composite
def indices(draw):
    """Two levels made by hand: block rows over arbitrary token groups, with offsets, positions and masks."""
    page_size, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    levels, begin = [], 0
    for _ in range(2):
        rows = draw(st.integers(1, 3))
        group = random.integers(0, rows, tokens)
        order = np.argsort(group, kind="stable")
        keys, offset = random.integers(0, 7, rows), random.integers(0, page_size, rows)
        sizes = np.bincount(group, minlength=rows)
        words = -(-sizes * keys // 32)
        levels.append(
            Level(
                row_indptr=np.cumsum([0, *sizes]),
                row_tokens=order,
                kv_len=keys,
                kv_start=np.full(rows, begin),
                kv_offset=offset,
                page_begin=random.integers(0, 5, rows),
                indices=random.permutation(15),
                block_pos=random.integers(0, 99, 15) if draw(st.booleans()) else None,
                mask_bits=random.integers(0, 2**32, words.sum() + 1, dtype=np.uint32),
                mask_begin=np.where(random.random(rows) < 0.5, np.cumsum(words) - words, -1),
                key_pos=random.integers(0, 99, 9),
                key_pos_begin=np.where(random.random(rows) < 0.5, 1, -1),
            )
        )
        begin += 7
    return ComposedIndex(
        page_size=page_size, qo_indptr=[0, tokens], kv_len=[14], token_request=np.zeros(tokens, np.int32), levels=levels
    )


@settings(max_examples=50, deadline=None)
@given(indices())
def test_to_dense_follows_the_fields_one_by_one(index):
    index.validate()
    dense = index.to_dense()
    covered = set()
    for number, level in enumerate(index.levels):
        for row in range(level.num_rows):
            group = level.row_tokens[level.row_indptr[row] : level.row_indptr[row + 1]]
            for place, token in enumerate(group):
                for key in range(level.kv_len[row]):
                    column = level.kv_start[row] + key
                    page, slot = divmod(level.kv_offset[row] + key, index.page_size)
                    entry = level.page_begin[row] + page
                    assert dense.slot[token, column] == level.indices[entry] * index.page_size + slot
                    position = column if level.block_pos is None else level.block_pos[entry] + slot
                    if level.key_pos_begin[row] >= 0:
                        position = level.key_pos[level.key_pos_begin[row] + key]
                    assert dense.kv_pos[token, column] == position
                    bit = 32 * level.mask_begin[row] + place * level.kv_len[row] + key
                    seen = level.mask_begin[row] < 0 or level.mask_bits[bit // 32] >> (bit % 32) & 1
                    assert dense.visible[token, column] == bool(seen)
                    assert dense.level[token, column] == number
                    covered.add((int(token), int(column)))
    assert (dense.level >= 0).sum() == len(covered)
    assert not dense.visible[dense.level < 0].any()
