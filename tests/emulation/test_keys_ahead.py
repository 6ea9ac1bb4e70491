"""Keys that a kernel transforms before that of attention: the bits of units that do it, and nothing else is read."""

from __future__ import annotations

import contextlib

import attnloom
import attrs
import numpy as np
import pytest
import torch
from attnloom.engines.keys_ahead import KeysAhead
from attnloom.engines.long import TALL
from emulation.bench import AMPERE, HOPPER, KERNELS, same_bits
from gpu.bench import SPECS

REQUESTS = [(40, 90), (0, 9), (3, 0), (1, 33), (70, 75)]
ROPE = [kernel for kernel, (_, name, how) in KERNELS.items() if name in ("window", "qk_norm") and "variants" not in how]


@contextlib.contextmanager
def going_ahead(wrapper):
    wrapper._engine.goes_ahead = True
    try:
        yield
    finally:
        wrapper._engine.goes_ahead = False


def check(bench, wrapper, index, host, data, **how):
    """A run that goes ahead against the oracle, and against one that does not, whose bits are the same."""
    with going_ahead(wrapper):
        ahead = bench.check(wrapper, index, host, data, scale=2.0, **how)
        assert wrapper.transforms_ahead()
    if wrapper.kernel.tiles.tall == TALL:  # whose kernel knows no other way
        return ahead
    wrapper.plan(index, params=how.pop("params", None))
    assert not wrapper.transforms_ahead()
    alone = bench.run(wrapper, data, **how)
    assert all(same_bits(a, b) for a, b in zip(ahead, alone, strict=True)), "bits depend on who transforms keys"
    return ahead


@pytest.mark.parametrize("page_size", (1, 3, 16))
@pytest.mark.parametrize("kernel", ROPE)
def test_batches(bench, rng, kernel, page_size):
    wrapper = bench.wrapper(kernel)
    check(bench, wrapper, *bench.batch(rng, wrapper.spec, REQUESTS, page_size))


@pytest.mark.parametrize("left", (200, -1))
def test_boxes(bench, rng, left):
    wrapper = bench.wrapper("teams_rope")
    batch = bench.batch(rng, wrapper.spec, [(200, 600), (1, 300), (33, 290)], 32)
    check(bench, wrapper, *batch, params={"sliding_window.left": left})


@pytest.mark.parametrize("arch", (AMPERE, HOPPER))
def test_rows_of_ten_pieces(bench, rng, monkeypatch, arch):
    monkeypatch.setitem(SPECS, "rope_d80", {"variants": ["rope", "causal"], "head_dim": 80})
    monkeypatch.setitem(KERNELS, f"d80_{arch}", (arch, "rope_d80", {}))
    wrapper = bench.wrapper(f"d80_{arch}")
    check(bench, wrapper, *bench.batch(rng, wrapper.spec, REQUESTS))


@pytest.mark.parametrize("num_workers", (1, 40))
@pytest.mark.parametrize("kernel", ("wgmma_window", "teams_rope"))
def test_workers(bench, rng, kernel, num_workers):
    wrapper = bench.wrapper(kernel, num_workers=num_workers)
    check(bench, wrapper, *bench.batch(rng, wrapper.spec, REQUESTS), params={"sliding_window.left": -1})


def test_layouts_and_scales(bench, rng):
    wrapper = bench.wrapper("wgmma_window")
    batch = bench.batch(rng, wrapper.spec, REQUESTS, layout="padded", index_dtype=np.int64)
    check(bench, wrapper, *batch, k_scale=0.5, v_scale=1.5)
    check(bench, wrapper, *batch, k_scale=torch.tensor([0.5, 2.0]))


@pytest.mark.parametrize("form", ("composed", "single"))
def test_shared_prefixes(bench, radix_index, rng, form):
    wrapper = bench.wrapper("wgmma_window")
    index, pages = radix_index(rng, [(0, 20, 60)] * 3 + [(1, 5, 90), (2, 33, 40)], roots=(20, 6, 0))
    data = bench.tensors(rng, wrapper.spec, index, pages)
    index = index.single if form == "single" else attrs.evolve(index, single=None)
    check(bench, wrapper, index, index, data, params={"sliding_window.left": -1})


def test_trees(bench, rng):
    """Positions that are listed."""
    wrapper = bench.wrapper("wgmma_window")
    tables = rng.permutation(60).astype(np.int32).reshape(3, 20)
    build = attnloom.storage_format("tree_attention").build_index
    index = build(
        [7, 4, 3], [150, 4, 60], 16, parents=[[-1, 0, 0, 1, 1, 2, 5], [-1, 0, 1, 2], [-1] * 3], block_tables=tables
    )
    check(bench, wrapper, index, index, bench.tensors(rng, wrapper.spec, index, 60))


def test_pages_that_no_row_sees(bench, rng, monkeypatch):
    """A window leaves out keys at the front, and between tiles of a request that says where they stand."""
    monkeypatch.setitem(SPECS, "gaps", {"variants": ["rope", "causal", "sliding_window"], "head_dim": 64})
    monkeypatch.setitem(KERNELS, "gaps", (HOPPER, "gaps", {"params": {"sliding_window.left": 20}}))
    wrapper = bench.wrapper("gaps")
    pages, q_pos = rng.permutation(40).astype(np.int32)[None], np.int32([*range(60, 92), *range(500, 532)])
    build = attnloom.storage_format("page_table").build_index
    index = build([64], [600], 16, block_tables=pages, q_pos=q_pos)
    data = bench.tensors(rng, wrapper.spec, index, 40)
    gone = np.r_[0:2, 6:29]
    for cache in data.kv:
        cache[pages[0, gone]] = float("nan")
    first = check(bench, wrapper, index, index, data)
    with going_ahead(wrapper):
        wrapper.plan(index)
        wrapper._plan.enough_pages = 0
        index.levels[0].indices.ravel()[gone] = [10**6, -1] + 21 * [10**9] + [-(2**31), 2**31 - 1]
        again = bench.run(wrapper, data)
    assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))


def test_what_is_transformed(bench, rng):
    wrapper = bench.wrapper("wgmma_window")
    index, _, _ = bench.batch(rng, wrapper.spec, [(40, 290), (0, 9), (3, 0), (1, 33)])
    wrapper.plan(index)
    ahead = KeysAhead(wrapper._plan)
    assert ahead.rows.tolist() == [
        (0, 8, 290, 0),
        (16, 0, 0, 0),
        (16, 0, 0, 2),
        (16, 0, 33, 3),
        (24, 0, 0, 0),
    ]
    assert ahead.slots == 24 * 16
    items = wrapper._plan.view.decode().items
    assert ahead.loads == sum(item.heads * (item.kv_end - item.kv_begin) for item in items)


def test_a_kernel_that_does_not_wait_for_its_keys(bench, rng):
    wrapper = bench.wrapper("wgmma_window")
    index, _, data = bench.batch(rng, wrapper.spec, REQUESTS)
    with going_ahead(wrapper):
        wrapper.plan(index)
        with pytest.raises(RuntimeError, match=r"reads before griddepcontrol\.wait"):
            bench.run(wrapper, data, ignored=b"griddepcontrol.wait")
