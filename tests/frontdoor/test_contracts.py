"""What must hold of every kernel, whatever the plan."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch
from attnloom import AttentionWrapper

WORKERS = range(1, 9)


def shuffled_pages(index, num_pages, order):
    """The same batch with each page somewhere else: `order[page]` is its new id."""
    level = index.levels[0]
    kept = np.where(level.indices < num_pages, order[np.minimum(level.indices, num_pages - 1)], level.indices)
    moved = attnloom.Level(
        row_indptr=level.row_indptr, kv_len=level.kv_len, kv_start=level.kv_start, kv_offset=level.kv_offset,
        page_begin=level.page_begin, indices=kept.astype(level.indices.dtype),
    )  # fmt: skip
    return attnloom.ComposedIndex(
        page_size=index.page_size, qo_indptr=index.qo_indptr, kv_len=index.kv_len,
        token_request=index.token_request, levels=[moved],
    )  # fmt: skip


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_physical_page_order_changes_no_bit(bench, rng, page_size):
    index, pages = bench.paged(rng, [(1, 200), (40, 90), (2, 7)], page_size)
    wrapper = bench.wrapper(bench.spec(), num_workers=3)
    data = bench.tensors(rng, wrapper.spec, index, pages)
    out, lse = bench.check(wrapper, index, data)
    order = rng.permutation(pages)
    wrapper.plan(shuffled_pages(index, pages, order))
    moved_k, moved_v = torch.empty_like(data.k), torch.empty_like(data.v)
    moved_k[order], moved_v[order] = data.k, data.v
    again, again_lse = wrapper.run(data.q, (moved_k, moved_v), return_lse=True)
    assert torch.equal(out, again) and torch.equal(lse, again_lse)


@pytest.mark.parametrize("kind", ["causal", "windowed"])
def test_a_split_changes_nothing_beyond_rounding(bench, rng, kind):
    spec = bench.spec() if kind == "causal" else bench.windowed()
    index, pages = bench.paged(rng, [(1, 700), (5, 30), (1, 0), (33, 200)], 16)
    data = bench.tensors(rng, spec, index, pages)
    parts = set()
    for workers in WORKERS:
        wrapper = bench.wrapper(spec, num_threads=2, num_workers=workers)
        bench.check(wrapper, index, data, scale=2)
        parts.add(wrapper.workspace_size())
    assert len(parts) > 1


def test_the_number_of_threads_changes_no_bit(bench, rng):
    index, pages = bench.paged(rng, [(1, 700), (60, 200)], 16)
    one, two = (bench.wrapper(bench.spec(), num_threads=threads, num_workers=5) for threads in (1, 2))
    data = bench.tensors(rng, one.spec, index, pages)
    first = bench.check(one, index, data)
    for _ in range(3):
        assert all(map(torch.equal, first, bench.check(two, index, data)))


def test_sinks_count_once_and_alone(bench, rng):
    spec = bench.windowed(left=-1)
    wrapper = bench.wrapper(spec, num_workers=8)
    index, pages = bench.paged(rng, [(1, 900), (1, 0), (3, 1)], 16)
    data = bench.tensors(rng, spec, index, pages)
    out, lse = bench.check(wrapper, index, data, scale=2)
    assert wrapper.workspace_size() > 0
    assert (out[1] == 0).all() and torch.allclose(lse[1], torch.tensor([3.0, -1.0, 2.0, 0.0]))


def test_rows_that_see_nothing(bench, rng):
    index, pages = bench.paged(rng, [(7, 3), (2, 0), (0, 9), (1, 1)], 16)
    wrapper = bench.wrapper(bench.spec(), num_workers=3)
    data = bench.tensors(rng, wrapper.spec, index, pages)
    out, lse = bench.check(wrapper, index, data)
    blind = [0, 1, 2, 3, 7, 8]
    assert (out[blind] == 0).all() and torch.isneginf(lse[blind]).all()
    assert torch.isfinite(lse[[4, 5, 6, 9]]).all()


@pytest.mark.parametrize("requests", [[], [(0, 0)], [(0, 5), (0, 0)], [(1, 0)]])
def test_empty_batches(bench, rng, requests):
    wrapper = bench.wrapper(bench.spec(), num_workers=3)
    index, pages = bench.paged(rng, requests, 16)
    bench.check(wrapper, index, bench.tensors(rng, wrapper.spec, index, pages))


@pytest.mark.parametrize("logit", [-1e5, -524288.0, 1e4])
def test_extreme_logits(bench, rng, logit):
    spec = bench.spec([], sm_scale=1.0)
    wrapper = bench.wrapper(spec, num_workers=4)
    index, pages = bench.paged(rng, [(1, 300), (1, 1)], 16)
    data = bench.tensors(rng, spec, index, pages)
    data.q.zero_()
    data.q[:, :, 0] = 1
    used = ~data.k.isnan()
    data.k[used] = 0
    data.k[..., 0][used[..., 0]] = logit
    _, lse = bench.check(wrapper, index, data)
    assert torch.allclose(lse[1], torch.full((4,), logit))
    wide = bench.tensors(rng, spec, index, pages, magnitude=40)
    bench.check(wrapper, index, wide, scale=50)


def test_batch_mates_change_no_bit(bench, rng):
    spec = bench.spec(batch_invariant=True)
    requests = [(3, 2500), (1, 40), (20, 1500), (1, 1100)]
    index, pages = bench.paged(rng, requests, 16)
    wrapper = bench.wrapper(spec, num_workers=7)
    data = bench.tensors(rng, spec, index, pages)
    together, together_lse = bench.check(wrapper, index, data)
    table = index.levels[0].indices.reshape(len(requests), -1)
    for row, (qo, kv) in enumerate(requests):
        alone = attnloom.storage_format("page_table").build_index([qo], [kv], 16, block_tables=table[row : row + 1])
        tokens = slice(index.qo_indptr[row], index.qo_indptr[row + 1])
        for workers in (1, 5):
            single = bench.wrapper(spec, num_workers=workers)
            single.plan(alone)
            out, lse = single.run(data.q[tokens], data.kv, return_lse=True)
            assert torch.equal(out, together[tokens]) and torch.equal(lse, together_lse[tokens])


def test_states_over_halves_merge_to_the_whole(bench, rng):
    spec = bench.spec([])
    wrapper = bench.wrapper(spec, num_workers=2)
    index, pages = bench.paged(rng, [(3, 90)], 1)
    data = bench.tensors(rng, spec, index, pages)
    whole = bench.check(wrapper, index, data)
    table = index.levels[0].indices
    halves = []
    for part in (table[:33], table[33:], table[:0]):
        wrapper.plan(
            attnloom.storage_format("page_table").build_index([3], [len(part)], 1, block_tables=[part.tolist()])
        )
        halves.append(wrapper.run(data.q, data.kv, return_lse=True))
    merged = attnloom.merge_states(halves)
    for given, expected in zip(merged, whole, strict=True):
        assert torch.allclose(given, expected, atol=1e-5)


def test_a_plan_may_be_replaced_a_thousand_times(bench, rng):
    wrapper = AttentionWrapper(bench.spec(), num_threads=2, num_workers=3)
    batches = [bench.paged(rng, requests, 16) for requests in ([(1, 300)], [(9, 9), (1, 20)], [])]
    cases = [(index, bench.tensors(rng, wrapper.spec, index, pages)) for index, pages in batches]
    first = [bench.check(wrapper, index, data) for index, data in cases]
    for turn in range(1000):
        index, data = cases[turn % 3]
        wrapper.plan(index)
        if turn % 10 == 0:
            out, lse = wrapper.run(data.q, data.kv, return_lse=True)
            assert torch.equal(out, first[turn % 3][0]) and torch.equal(lse, first[turn % 3][1])
