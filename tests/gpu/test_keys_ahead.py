"""Keys transformed ahead of attention: when, the bits of units that do it, and what graphs and workspaces say to it."""

from __future__ import annotations

import attnloom
import attrs
import numpy as np
import pytest
import torch
from attnloom.errors import PlanError

PREFILL = [(512, 512), (300, 700), (1, 40), (130, 130)]
ROPE = {"sliding_window.left": -1}


@pytest.fixture
def spec(bench):
    return bench.spec("window", params={**bench.spec("window").params, **ROPE})


def same_bits(one, other):
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("page_size, on_device", [(1, False), (3, True), (16, False), (16, True)])
def test_bits_of_a_prefill(bench, rng, monkeypatch, spec, page_size, on_device):
    wrapper = attnloom.AttentionWrapper(spec, "cuda")
    monkeypatch.setattr(wrapper._engine, "long_spec", None)  # whose kernel always goes ahead
    index, host, data = bench.batch(rng, spec, PREFILL, page_size, on_device=on_device)
    ahead = bench.check(wrapper, index, host, data, scale=2.0)
    assert wrapper.transforms_ahead()
    assert wrapper.workspace_size() == wrapper._plan.keys_bytes + 4 * 130 * wrapper._plan.view.num_part_rows
    monkeypatch.setattr(wrapper._engine, "_goes_ahead", False)
    wrapper.plan(index)
    assert not wrapper.transforms_ahead()
    assert same_bits(ahead, bench.run(wrapper, data))


@pytest.mark.parametrize("layout", ("fused", "hnd", "padded"))
def test_layouts_and_scales(bench, rng, spec, layout):
    wrapper = bench.wrapper(spec)
    index, host, data = bench.batch(rng, spec, PREFILL, layout=layout, index_dtype=np.int64)
    bench.check(wrapper, index, host, data, scale=2.0, k_scale=0.5, v_scale=1.5)
    bench.check(wrapper, index, host, data, scale=2.0, k_scale=torch.tensor([0.5, 2.0], device="cuda"))
    assert wrapper.transforms_ahead()


@pytest.mark.parametrize("left", (0, 200))
def test_windows(bench, rng, spec, left):
    wrapper = bench.wrapper(spec)
    index, host, data = bench.batch(rng, spec, [(700, 2900), (500, 500)])
    bench.check(wrapper, index, host, data, params={"sliding_window.left": left}, scale=2.0)


def test_norms(bench, rng):
    wrapper = bench.wrapper(bench.spec("qk_norm"))
    index, host, data = bench.batch(rng, wrapper.spec, PREFILL)
    bench.check(wrapper, index, host, data, scale=2.0)
    assert wrapper.transforms_ahead()


def test_shared_prefixes(bench, radix_index, rng, spec):
    wrapper = bench.wrapper(spec)
    index, pages = radix_index(rng, [(0, 20, 60)] * 12 + [(2, 200, 290), (1, 33, 40)], roots=(80, 6, 0))
    data = bench.tensors(rng, spec, index, pages)
    for form, ahead in ((attrs.evolve(index, single=None), True), (index.single, False)):
        bench.check(wrapper, form, form, data, scale=2.0)
        assert wrapper.transforms_ahead() == ahead


def test_batches_that_grow_and_shrink(bench, rng, spec):
    wrapper = attnloom.AttentionWrapper(spec, "cuda")
    for length in (300, 2000, 130, 1, 1200):
        index, host, data = bench.batch(rng, spec, [(length, length + 3)] * 3)
        bench.check(wrapper, index, host, data, scale=2.0)
        assert wrapper.transforms_ahead() == (length > 1)


def test_two_wrappers_of_one_workspace(bench, rng, spec):
    workspace = attnloom.Workspace("cuda")
    rope, causal = (attnloom.AttentionWrapper(one, "cuda", workspace=workspace) for one in (spec, bench.spec("causal")))
    prefill, decode = (bench.batch(rng, spec, requests) for requests in (PREFILL, [(1, 9000)] * 3))
    rope.plan(prefill[0])
    causal.plan(decode[0])
    for _ in range(2):
        for wrapper, (_, host, data) in ((rope, prefill), (causal, decode)):
            bench.compare(wrapper, host, data, *bench.run(wrapper, data), scale=2.0)
    assert rope.transforms_ahead() and causal.workspace_size() > 0


def test_when_it_does_not(bench, rng, spec):
    index, host, data = bench.batch(rng, spec, PREFILL)
    lengths = torch.from_numpy(index.kv_len).cuda()
    for changes, limits, options in (
        ({}, {"max_requests": 8}, {}),
        ({"batch_invariant": True}, {}, {}),
        ({}, {}, {"kv_lens": lengths}),
    ):
        wrapper = attnloom.AttentionWrapper(bench.spec("window", params=spec.params, **changes), "cuda", **limits)
        wrapper.plan(index, **options)
        assert not wrapper.transforms_ahead()
        bench.compare(wrapper, host, data, *bench.run(wrapper, data), scale=2.0)


class Captured:
    """A captured run of a wrapper without maxima that has planned some batches before, and its tensors."""

    PAGES = 400

    def __init__(self, bench, spec, rng, batches):
        self.bench, self.spec, self.rng = bench, spec, rng
        self.wrapper = attnloom.AttentionWrapper(spec, "cuda")
        tokens = sum(qo for qo, _ in batches[0])
        self.q = torch.zeros(tokens, spec.num_qo_heads, spec.head_dim, dtype=torch.bfloat16, device="cuda")
        shape = (self.PAGES, 16, spec.num_kv_heads, spec.head_dim)
        self.kv = tuple(torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self.out = torch.empty(tokens, spec.num_qo_heads, spec.head_dim_v, dtype=torch.bfloat16, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        for batch in reversed(batches):
            self.plan(batch, device_lengths=True)
            self.plan(batch)
        self.run()
        with torch.cuda.graph(self.graph):
            self.run()

    def plan(self, requests, *, device_lengths=False):
        self.index, self.host, _ = self.bench.paged(self.rng, requests, 16)
        self.wrapper.plan(self.index, kv_lens=torch.from_numpy(self.index.kv_len).cuda() if device_lengths else None)

    def run(self):
        self.wrapper.run(self.q, self.kv, out=self.out)

    def check(self):
        data = self.bench.tensors(self.rng, self.spec, self.host, self.PAGES)
        self.q.copy_(data.dq)
        for mine, given in zip(self.kv, data.kv, strict=True):
            mine.copy_(given)
        self.out.fill_(float("nan"))
        self.wrapper.workspace.buffer.fill_(float("nan"))
        self.graph.replay()
        self.bench.compare(self.wrapper, self.host, data, self.out, None, scale=2.0)


def test_a_graph_that_goes_ahead(bench, rng, spec):
    batches = [(400, 700), (400, 500)], [(790, 800), (10, 300)], [(400, 400)] * 2, [(100, 100)] * 8, [(800, 800)]
    captured = Captured(bench, spec, rng, batches)
    captured.check()
    for batch in batches:
        for device_lengths in (False, True):
            captured.plan(batch, device_lengths=device_lengths)
            assert captured.wrapper.transforms_ahead()
            captured.check()
    with pytest.raises(PlanError, match="bytes of keys to transform ahead, but a CUDA graph has captured room"):
        captured.plan([(400, 700), (400, 900)])
    captured.plan(batches[0])
    captured.check()


def test_a_graph_that_does_not(bench, rng, spec):
    decode, prefill = [(1, 10)] * 300, [(300, 400)]
    captured = Captured(bench, spec, rng, [decode, prefill])
    for batch in (decode, prefill):
        captured.plan(batch)
        assert not captured.wrapper.transforms_ahead()
        captured.check()
