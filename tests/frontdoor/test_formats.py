"""The other storage formats through a kernel: composed levels, speculation trees, dense ranges."""

from __future__ import annotations

import attnloom
import attrs
import numpy as np
import pytest
import torch
from attnloom import AttentionWrapper
from attnloom_scheduler.inputs import ITEM_READ_ONCE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

quick = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
shared_prefixes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 45)), min_size=1, max_size=6)


@quick
@given(shared_prefixes, st.sampled_from([1, 3, 16]), st.sampled_from([1, 3, 8]))
def test_shared_prefixes(bench, radix_index, requests, page_size, workers):
    rng = np.random.default_rng(len(requests))
    for made in (bench.windowed(30), bench.spec()):
        wrapper = bench.wrapper(made, num_workers=workers)
        index, pages = radix_index(rng, requests, page_size)
        data = bench.tensors(rng, made, index, pages)
        bench.check(wrapper, index, data, scale=2)
        bench.check(wrapper, attrs.evolve(index, single=None), data, scale=2)
        if index.single is not None:
            bench.check(wrapper, index.single, data, scale=2)


def test_sharing_pays_where_it_should(bench, radix_index, rng):
    wrapper = bench.wrapper(bench.spec(tile="auto", heads=(8, 2), head_dim=64), num_workers=2)
    index, pages = radix_index(rng, [(0, 1, 20)] * 16, 16, roots=(64, 0, 0))
    data = bench.tensors(rng, wrapper.spec, index, pages)
    bench.check(wrapper, index, data)
    assert len(index.levels) == 2 and wrapper._plan.index is index
    small, pages = radix_index(rng, [(0, 1, 20)] * 2, 16, roots=(1, 0, 0))
    bench.check(wrapper, small, bench.tensors(rng, wrapper.spec, small, pages))
    assert small.single is None or wrapper._plan.index is small.single


def test_a_composed_plan_that_fails_leaves_the_old_one(bench, radix_index, rng):
    wrapper = AttentionWrapper(bench.spec(), num_workers=3)
    index, pages = radix_index(rng, [(0, 1, 20)] * 8, 16, roots=(20, 0, 0))
    data = bench.tensors(rng, wrapper.spec, index, pages)
    expected = bench.check(wrapper, index, data)
    broken = attrs.evolve(index, levels=index.levels * 3).trusted()
    for _ in range(3):
        with pytest.raises(attnloom.PlanError, match="6 levels"):
            wrapper.plan(broken)
        assert all(map(torch.equal, bench.run(wrapper, data), expected))
    wrapper.workspace = type("Full", (), {"reserve": lambda self, nbytes: (_ for _ in ()).throw(MemoryError())})()
    workspace = attnloom.Workspace()
    with pytest.raises(MemoryError):
        wrapper.plan(index)
    workspace.reserve(wrapper.workspace_size())
    wrapper.workspace = workspace
    assert all(map(torch.equal, bench.run(wrapper, data), expected))


def test_batch_invariant_plans_are_single(bench, radix_index, rng):
    wrapper = bench.wrapper(bench.spec(batch_invariant=True), num_workers=2)
    index, pages = radix_index(rng, [(0, 1, 20)] * 16, 16, roots=(64, 0, 0))
    bench.check(wrapper, index, bench.tensors(rng, wrapper.spec, index, pages))
    assert wrapper._plan.index is index.single


@st.composite
def trees(draw):
    size = draw(st.integers(0, 12))
    return [draw(st.integers(-1, node - 1)) for node in range(size)]


@quick
@given(st.lists(st.tuples(trees(), st.integers(0, 50)), min_size=1, max_size=4), st.sampled_from([1, 3, 16]))
def test_speculation_trees(bench, requests, page_size):
    rng = np.random.default_rng(page_size)
    kv_lens = [committed + len(parents) for parents, committed in requests]
    counts = [-(-kv // page_size) for kv in kv_lens]
    pages = rng.permutation(sum(counts)).tolist()
    tables = [[pages.pop() for _ in range(count)] for count in counts]
    index = attnloom.storage_format("tree_attention").build_index(
        [len(parents) for parents, _ in requests], kv_lens, page_size,
        block_tables=tables, parents=[parents for parents, _ in requests],
    )  # fmt: skip
    for spec in (bench.spec(), bench.windowed(9)):
        wrapper = bench.wrapper(spec, num_workers=3)
        bench.check(wrapper, index, bench.tensors(rng, spec, index, max(sum(counts), 1)), scale=2)


@quick
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=0, max_size=5), st.sampled_from([None, 1, 7])
)
def test_dense_ranges(bench, requests, page_size):
    rng = np.random.default_rng(len(requests))
    qo_lens, kv_lens = [qo for qo, _ in requests], [kv for _, kv in requests]
    index = attnloom.storage_format("dense").build_index(qo_lens, kv_lens, page_size or max(sum(kv_lens), 1))
    wrapper = bench.wrapper(bench.spec(), num_workers=3)
    pages = max(1, -(-sum(kv_lens) // index.page_size))
    bench.check(wrapper, index, bench.tensors(rng, wrapper.spec, index, pages))


def test_masks_and_page_lists_a_head(bench, rng):
    requests = [(3, 20), (2, 9)]
    table = rng.permutation(2 * 2 * 2).reshape(2, 2, 2).astype(np.int32)
    masks = [rng.random(shape) < 0.5 for shape in requests]
    build = attnloom.storage_format("page_table").build_index
    index = build([3, 2], [20, 9], 16, block_tables=table, mask=masks)
    wrapper = bench.wrapper(bench.spec(), num_workers=3)
    data = bench.tensors(rng, wrapper.spec, index, 8)
    data.k, data.v = torch.randn(8, 16, 2, 40), torch.randn(8, 16, 2, 40)
    data.kv = data.k, data.v
    bench.check(wrapper, index, data)


def test_keys_that_requests_share_are_read_as_often_as_they_ask(monkeypatch):
    """The planner takes keys to come from memory, once each, only where no two requests are known to share them."""
    monkeypatch.setattr("attnloom.engines.host.HostEngine.workers_per_processor", 2)
    spec = attnloom.AttentionSpec(["causal"], num_qo_heads=2, num_kv_heads=1, head_dim=64, dtype="float32")
    wrapper = AttentionWrapper(spec, num_workers=4)
    tables = [[0, 1, 2, 3, 4 + request] for request in range(3)]
    marked = {}
    for name in ("page_table", "radix_tree"):
        index = attnloom.storage_format(name).build_index([1] * 3, [80] * 3, 16, block_tables=tables)
        wrapper.plan(index)
        marked[name] = {bool(item.flags & ITEM_READ_ONCE) for item in wrapper._plan.view.decode().items}
    assert index.single is not None
    assert marked == {"page_table": {True}, "radix_tree": {False}}
