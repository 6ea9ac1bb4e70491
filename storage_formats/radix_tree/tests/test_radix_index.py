"""The composed index of the `radix_tree` format against its own single view, and its prefixes against brute force."""

import itertools

import numpy as np
import pytest
import torch
from attnloom.errors import IndexFormatError
from attnloom.index import MAX_LEVELS
from attnloom_radix_tree import RadixTree, prefixes
from attnloom_radix_tree.build import build_index
from hypothesis import given, settings
from hypothesis import strategies as st


def pages_of(paths):
    """A page table in which equal leading labels share a page: the table a radix tree of `paths` would make."""
    ids = {}
    rows = [[ids.setdefault(tuple(path[: at + 1]), len(ids)) for at in range(len(path))] for path in paths]
    table = np.full((len(rows), max(map(len, rows), default=0) + 1), -1, np.int32)
    for row, pages in zip(table, rows, strict=True):
        row[: len(pages)] = pages
    return table


def assert_same_pairs(index):
    """The levels show each pair of the single view once, at the same slot and position."""
    index.validate()
    dense = index.to_dense()
    single = (index.single or index).to_dense()
    assert np.array_equal(dense.visible, single.visible)
    assert np.array_equal(dense.slot, single.slot)
    assert np.array_equal(dense.kv_pos, single.kv_pos)
    assert np.array_equal(dense.q_pos, single.q_pos)
    return dense


@st.composite
def batches(draw):
    paths = draw(st.lists(st.lists(st.integers(0, 1), max_size=7), max_size=9))
    page_size = draw(st.sampled_from([1, 4, 16]))
    kv = [max(len(path) * page_size - draw(st.integers(0, page_size - 1)), 0) for path in paths]
    qo = [draw(st.sampled_from([0, 1, 1, 3])) for _ in paths]
    return paths, qo, kv, page_size


@settings(max_examples=50, deadline=None)
@given(batches())
def test_sharing_changes_no_pair(batch):
    paths, qo, kv, page_size = batch
    index = build_index(qo, kv, page_size, block_tables=pages_of(paths))
    assert_same_pairs(index)
    assert len(index.levels) <= MAX_LEVELS
    index.check_pages(1000)


@settings(max_examples=50, deadline=None)
@given(batches())
def test_every_shared_prefix_is_found(batch):
    paths, qo, kv, page_size = batch
    whole = np.array(kv, np.int64) // page_size
    found = prefixes.find_prefixes(pages_of(paths), whole, np.array(qo, np.int32))
    live = [r for r in range(len(paths)) if qo[r] and whole[r]]
    fronts = {tuple(paths[r][:n]) for r in live for n in range(1, whole[r] + 1)}
    sharers = {front: [r for r in live if tuple(paths[r][: min(len(front), whole[r])]) == front] for front in fronts}
    longest = {}
    for front, requests in sharers.items():
        if len(requests) > 1:
            key = tuple(requests)
            longest[key] = max(longest.get(key, 0), len(front))
    assert {tuple(p.requests): p.end for p in found} == longest
    for prefix in found:
        assert prefix.tokens == sum(qo[r] for r in prefix.requests)
        if prefix.parent >= 0:
            assert set(prefix.requests) < set(found[prefix.parent].requests)


def test_a_shared_prompt_is_a_tall_row():
    table = pages_of([[0, 1, 2, 10], [9], [0, 1, 2, 11, 11], [0, 1, 2, 12]])
    index = build_index([1, 1, 1, 2], [50, 5, 70, 64], 16, block_tables=table)
    prefix, rest = index.levels
    assert prefix.row_tokens.tolist() == [0, 2, 3, 4]
    assert (prefix.kv_len.tolist(), prefix.kv_start.tolist()) == ([48], [0])
    assert (rest.kv_len.tolist(), rest.kv_start.tolist()) == ([2, 5, 22, 16], [48, 0, 48, 48])
    assert index.single.levels[0].kv_len.tolist() == [50, 5, 70, 64]
    assert_same_pairs(index)


def test_prefixes_nest():
    paths = [[0, 0, 0, 0, i // 4, i // 4, 20 + i // 2, 20 + i // 2, 40 + i] for i in range(8)]
    index = build_index([1] * 8, [9 * 16 - 3] * 8, 16, block_tables=pages_of(paths))
    assert [level.num_rows for level in index.levels] == [1, 2, 4, 8]
    assert [level.kv_start[0] for level in index.levels] == [0, 64, 96, 128]
    assert_same_pairs(index)


def test_the_best_cuts_are_kept_where_prefixes_nest_too_deep():
    lengths = [9, 1, 6, 1, 7, 1]
    paths, front = [], []
    for depth, length in enumerate(lengths):
        front += [depth] * length
        paths += [[*front, 100 + depth], [*front, 200 + depth]]
    qo, kv = np.ones(len(paths), np.int32), np.array([16 * len(path) for path in paths])
    table = pages_of(paths)
    found = prefixes.find_prefixes(table, kv // 16, qo)
    assert len(found) == 6
    kept = prefixes.keep_prefixes(found, 16, 3)
    total = sum(prefix.gain(prefix.begin, 16) for prefix in kept)

    def gain_of(cuts):
        ends = [0, *(found[at].end for at in cuts)]
        gains = [found[at].gain(begin, 16) for at, begin in zip(cuts, ends, strict=False)]
        return sum(gains) if min(gains) >= 0 else -1

    assert total == max(gain_of(cuts) for n in (1, 2, 3) for cuts in itertools.combinations(range(6), n))
    index = build_index(qo, kv, 16, block_tables=table)
    assert len(index.levels) == MAX_LEVELS
    assert_same_pairs(index)


def test_a_prefix_that_saves_too_little_is_left_alone():
    table = pages_of([[0, 1], [0, 2]])
    assert build_index([1, 1], [32, 32], 16, block_tables=table).single is not None
    assert build_index([1, 1], [30, 30], 15, block_tables=table).single is None, "15 keys saved, 2 tokens cost 16"
    assert build_index([9, 9], [32, 32], 16, block_tables=table).single is None


def test_partial_pages_are_not_shared():
    index = build_index([1, 1], [40, 45], 16, block_tables=np.array([[3, 4, 5], [3, 4, 5]]))
    assert index.levels[0].kv_len.tolist() == [32]
    assert_same_pairs(index)


def test_tables_of_every_kind():
    table = pages_of([[0, 1, 2], [0, 1, 3]])
    expected = build_index([1, 1], [48, 48], 16, block_tables=table).to_dense().level
    wide = torch.full((2, 9), -1)
    wide[:, : table.shape[1]] = torch.from_numpy(table)
    for same in (table.astype(np.int64), torch.from_numpy(table), wide[:, : table.shape[1]], [[0, 1, 2], [0, 1, 3]]):
        index = build_index([1, 1], [48, 48], 16, block_tables=same)
        assert np.array_equal(index.to_dense().level, expected)
    copied = build_index([1, 1], [48, 48], 16, block_tables=torch.from_numpy(table), host_block_tables=table)
    assert np.array_equal(copied.to_dense().level, expected)


def test_sequences_of_a_tree():
    tree = RadixTree(num_pages=64, page_size=4)
    system = tree.insert(range(40))
    chats = [tree.insert([*range(40), 50 + i]) for i in range(3)] + [tree.fork(system)]
    tree.append(chats[0], [1, 2, 3])
    index = build_index([1] * 4, None, 4, sequences=chats)
    assert index.kv_len.tolist() == [44, 41, 41, 40]
    dense = assert_same_pairs(index)
    assert [dense.slot[t, : len(chat)].tolist() for t, chat in enumerate(chats)] == [
        tree.slots(chat).tolist() for chat in chats
    ]
    assert index.levels[0].row_indptr[-1] == 4


def test_empty_batches():
    for table in (np.zeros((0, 3), np.int32), []):
        index = build_index([], [], 16, block_tables=table)
        index.validate()
        assert index.num_tokens == 0
    assert_same_pairs(build_index([1, 1], [0, 0], 16, block_tables=np.zeros((2, 0), np.int32)))


@pytest.mark.parametrize(
    ("args", "needs", "message"),
    [
        (([1], [3], 2), {}, "give either block_tables or sequences"),
        (([1], None, 2), {"block_tables": [[1]]}, "kv_lens is none"),
        (([1], [3], 2), {"block_tables": [[1]]}, r"kv_lens\[0\] is 3, its 1 page\(s\)"),
        (([1, 1], [2, 5], 2), {"block_tables": [[1, 2, 3], [1]]}, r"kv_lens\[1\] is 5, its 1 page\(s\)"),
        (([1], [1], 2), {"block_tables": np.zeros((2, 1, 1), np.int32)}, "a list for each kv head"),
        (
            ([1], [1], 2),
            {"block_tables": np.zeros((1, 1), np.int32), "host_block_tables": np.zeros((1, 2), np.int32)},
            r"host_block_tables has shape \[1, 2\]",
        ),
    ],
)
def test_contradictions_are_named(args, needs, message):
    with pytest.raises(IndexFormatError, match=message):
        build_index(*args, **needs)


def test_the_hook_names_the_format():
    from attnloom_radix_tree.plugin import attnloom_storage_formats

    (radix_tree,) = attnloom_storage_formats()
    assert radix_tree.build_index([1], [1], 2, block_tables=[[4]]).num_tokens == 1
