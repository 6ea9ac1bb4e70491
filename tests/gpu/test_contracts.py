"""What must hold of every kernel on the device, whatever the plan."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_physical_page_order_changes_no_bit(bench, rng, page_size):
    spec = bench.spec("causal")
    wrapper = bench.wrapper(spec)
    requests = [(1, 1200), (40, 90), (2, 7)]
    lens = [qo for qo, _ in requests], [kv for _, kv in requests]
    width = -(-1200 // page_size)
    table = np.arange(3 * width, dtype=np.int32).reshape(3, width)
    build = attnloom.storage_format("page_table").build_index
    index = build(*lens, page_size, block_tables=table)
    data = bench.tensors(rng, spec, index, 3 * width)
    out, lse = bench.check(wrapper, index, index, data)
    order = rng.permutation(3 * width)
    wrapper.plan(build(*lens, page_size, block_tables=order[table].astype(np.int32)))
    back = torch.from_numpy(np.argsort(order)).cuda()
    again, again_lse = wrapper.run(data.dq, tuple(cache[back] for cache in data.kv), return_lse=True)
    assert torch.equal(out, again) and torch.equal(lse, again_lse)


@pytest.mark.parametrize("name", ["causal", "window", "e4m3"])
def test_a_split_changes_nothing_beyond_rounding(bench, rng, name):
    spec = bench.spec(name)
    index, host, data = bench.batch(rng, spec, [(1, 2700), (5, 30), (1, 0), (33, 200)])
    sizes = set()
    for workers in (1, 2, 5, 16, 60, 132):
        wrapper = attnloom.AttentionWrapper(spec, "cuda", num_workers=workers)
        bench.check(wrapper, index, host, data, scale=2)
        sizes.add(wrapper.workspace_size())
    assert len(sizes) > 1 or name == "window"  # a window of few keys is not worth a split


@pytest.mark.parametrize("name", ["causal", "window", "soft_cap", "e4m3"])
def test_a_wrapper_for_decode_alone(bench, rng, name):
    wrapper = attnloom.AttentionWrapper(bench.spec(name), "cuda", max_qo_len=1, max_levels=1)
    assert wrapper.kernel.tiles.tall is None
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 2700), (1, 3), (1, 0), (1, 400), (1, 900)])
    bench.check(wrapper, index, host, data, scale=2)
    assert not wrapper._plan.args.merge_pass


def test_the_same_plan_gives_the_same_bits(bench, rng):
    wrapper = bench.wrapper(bench.spec("causal"))
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 2000), (60, 400), (1, 77)])
    first = bench.check(wrapper, index, host, data)
    for _ in range(10):
        wrapper.plan(index)
        assert all(map(torch.equal, first, bench.run(wrapper, data)))


@pytest.mark.parametrize("name", ("causal", "soft_cap"))
def test_batch_invariance(bench, rng, name):
    spec = bench.spec(name, batch_invariant=True)
    wrapper = bench.wrapper(spec)
    build = attnloom.storage_format("page_table").build_index
    table = rng.permutation(400).astype(np.int32).reshape(4, 100)
    lens = [1, 1, 30, 1], [1500, 40, 700, 1]
    index = build(*lens, 16, block_tables=table)
    data = bench.tensors(rng, spec, index, 400)
    together = bench.check(wrapper, index, index, data)
    at = 0
    for row, (qo, kv) in enumerate(zip(*lens, strict=True)):
        wrapper.plan(build([qo], [kv], 16, block_tables=table[row : row + 1]))
        alone = wrapper.run(data.dq[at : at + qo].contiguous(), data.kv, return_lse=True)
        assert all(torch.equal(one, whole[at : at + qo]) for one, whole in zip(alone, together, strict=True))
        at += qo


def test_sinks_count_once_and_alone(bench, rng):
    spec = bench.spec("window")
    wrapper = bench.wrapper(spec)
    index, host, data = bench.batch(rng, spec, [(1, 1900), (1, 0), (3, 1)])
    out, lse = bench.check(wrapper, index, host, data, params={"sliding_window.left": -1}, scale=2)
    assert (out[1] == 0).all() and torch.allclose(lse[1].cpu(), torch.tensor(spec.params["sinks.sinks"]))


def test_rows_that_see_nothing(bench, rng):
    wrapper = bench.wrapper(bench.spec("causal"))
    index, host, data = bench.batch(rng, wrapper.spec, [(7, 3), (2, 0), (0, 9), (1, 1)])
    out, lse = bench.check(wrapper, index, host, data)
    blind = [0, 1, 2, 3, 7, 8]
    assert (out[blind] == 0).all() and torch.isneginf(lse[blind]).all()


def test_an_empty_batch(bench, rng):
    wrapper = bench.wrapper(bench.spec("causal"))
    index, host, data = bench.batch(rng, wrapper.spec, [])
    out, lse = bench.check(wrapper, index, host, data)
    assert out.shape[0] == lse.shape[0] == 0


def test_keys_that_a_mask_hides_may_be_nan(bench, rng):
    wrapper = bench.wrapper(bench.spec("causal"))
    requests = [(1, 65), (17, 33)]
    masks = [np.ones(shape, bool) for shape in requests]
    masks[0][:, 10:20] = False
    index, host, data = bench.batch(rng, wrapper.spec, requests, mask=masks)
    assert not host.to_dense().visible[0, 12]
    slot = host.to_dense().slot[0, 12]
    data.kv[0].view(-1, *data.k.shape[2:])[slot] = float("nan")
    bench.check(wrapper, index, host, data)


def test_as_a_torch_operator(bench, rng):
    wrapper = bench.wrapper(bench.spec("causal"))
    index, _, data = bench.batch(rng, wrapper.spec, [(1, 90), (5, 50)])
    wrapper.plan(index)
    expected = wrapper.run(data.dq, data.kv)
    given = torch.ops.attnloom.run(data.dq, *data.kv, wrapper.name, None, None)
    assert torch.equal(given, expected)
