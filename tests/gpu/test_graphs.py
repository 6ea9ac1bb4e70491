"""CUDA graphs: captured once, replayed for any batch within the maxima."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch
from attnloom.errors import PlanError
from gpu.bench import two_levels

LIMITS = {"max_requests": 24, "max_tokens": 48, "max_qo_len": 16, "max_kv_len": 900, "max_pages": 1400}


class Captured:
    """A wrapper with its captured run, and static tensors for the largest batch."""

    def __init__(self, bench, spec, rng, **limits):
        self.bench, self.spec, self.rng = bench, spec, rng
        self.limits = {**LIMITS, **limits}
        self.wrapper = attnloom.AttentionWrapper(spec, "cuda", **self.limits)
        tokens = self.limits["max_tokens"]
        self.pages = 1600
        self.q = torch.zeros(tokens, spec.num_qo_heads, spec.head_dim, dtype=torch.bfloat16, device="cuda")
        shape = (self.pages, 16, spec.num_kv_heads, spec.head_dim)
        self.k, self.v = (torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self.out = torch.empty(tokens, spec.num_qo_heads, spec.head_dim_v, dtype=torch.bfloat16, device="cuda")
        self.lse = torch.empty(tokens, spec.num_qo_heads, device="cuda")
        self.graph = torch.cuda.CUDAGraph()

    def capture(self, index):
        self.wrapper.plan(index)
        self.run()
        with torch.cuda.graph(self.graph):
            self.run()

    def run(self):
        self.wrapper.run(self.q, (self.k, self.v), out=self.out, lse=self.lse)

    def fill(self, host):
        """New tensors for a batch, NaN wherever nothing may be read."""
        data = self.bench.tensors(self.rng, self.spec, host, self.pages)
        tokens = host.num_tokens
        self.q.fill_(float("nan"))
        self.q[:tokens] = data.dq
        self.k.copy_(data.kv[0])
        self.v.copy_(data.kv[1])
        self.out.fill_(float("nan"))
        self.lse.fill_(float("nan"))
        self.wrapper.workspace.buffer.fill_(float("nan"))
        return data

    def check(self, host, data):
        tokens = host.num_tokens
        self.bench.compare(self.wrapper, host, data, self.out[:tokens], self.lse[:tokens])
        assert self.out[tokens:].isnan().all() and self.lse[tokens:].isnan().all(), "rows past the batch were written"


def batches(bench, rng):
    """Batches of every kind that one graph must serve."""
    yield bench.paged(rng, [(1, 300)] * 16, 16)
    yield bench.paged(rng, [(1, 5), (1, 0), (0, 0), (1, 890)], 16)
    yield bench.paged(rng, [], 16)
    yield bench.paged(rng, [(16, 400), (8, 70), (1, 3)], 16, on_device=True)
    yield bench.paged(rng, [(1, 60)] * 24, 16)
    yield bench.paged(rng, [(2, 600), (0, 30), (5, 5)], 16)
    index, pages = two_levels(40, 20, own=4)
    yield index, index, pages


def test_one_graph_serves_every_batch(bench, rng):
    captured = Captured(bench, bench.spec("causal"), rng)
    all_batches = list(batches(bench, rng))
    captured.capture(all_batches[1][0])
    addresses = captured.wrapper.workspace.address
    for index, host, _ in [*all_batches, *reversed(all_batches)]:
        data = captured.fill(host)
        captured.wrapper.plan(index)
        captured.graph.replay()
        captured.check(host, data)
    assert captured.wrapper.workspace.address == addresses


def test_nothing_is_allocated_after_the_first(bench, rng):
    captured = Captured(bench, bench.spec("causal"), rng)
    all_batches = list(batches(bench, rng))
    for index, _, _ in all_batches:
        captured.wrapper.plan(index)
    captured.run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for index, _, _ in all_batches:
        captured.wrapper.plan(index)
        captured.run()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_plans_queue_behind_a_busy_device(bench, rng):
    captured = Captured(bench, bench.spec("causal"), rng)
    (first, host, _), (second, second_host, _) = list(batches(bench, rng))[:2]
    captured.capture(first)
    data = captured.fill(host)
    other = captured.bench.tensors(rng, captured.spec, second_host, captured.pages)
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    captured.wrapper.plan(first)
    captured.graph.replay()
    early = captured.out.clone(), captured.lse.clone()
    captured.q[: second_host.num_tokens] = other.dq
    captured.k.copy_(other.kv[0])
    captured.v.copy_(other.kv[1])
    captured.wrapper.plan(second)
    captured.graph.replay()
    tokens = host.num_tokens
    bench.compare(captured.wrapper, host, data, early[0][:tokens], early[1][:tokens])
    tokens = second_host.num_tokens
    bench.compare(captured.wrapper, second_host, other, captured.out[:tokens], captured.lse[:tokens])


def test_lengths_that_the_device_reads(bench, rng):
    captured = Captured(bench, bench.spec("causal"), rng)
    bound, _, _ = bench.paged(rng, [(1, 800)] * 8 + [(4, 500)] * 4, 16)
    lengths = torch.zeros(12, dtype=torch.int32, device="cuda")
    captured.wrapper.plan(bound, kv_lens=lengths)
    captured.run()
    with torch.cuda.graph(captured.graph):
        captured.run()
    for _ in range(3):
        real = [int(x) for x in rng.integers(0, 800, 8)] + [int(x) for x in rng.integers(4, 500, 4)]
        table = bound.levels[0].indices.reshape(12, -1)
        host = attnloom.storage_format("page_table").build_index([1] * 8 + [4] * 4, real, 16, block_tables=table)
        data = captured.fill(host)
        lengths.copy_(torch.tensor(real, dtype=torch.int32))
        captured.graph.replay()
        captured.check(host, data)


def test_parameters_are_part_of_a_graph(bench, rng):
    spec = bench.spec("soft_cap")
    captured = Captured(bench, spec, rng)
    index, host, _ = bench.paged(rng, [(1, 300)] * 4, 16)
    captured.capture(index)
    with pytest.raises(PlanError, match="other parameters than the CUDA graph"):
        captured.wrapper.plan(index, params={"soft_cap.cap": 3.0})
    data = captured.fill(host)
    captured.graph.replay()
    captured.check(host, data)


def test_a_scale_that_is_new_under_capture(bench, rng):
    captured = Captured(bench, bench.spec("causal"), rng)
    index, host, _ = bench.paged(rng, [(1, 300)] * 4, 16)
    captured.capture(index)
    scales = {"k_scale": 0.375, "v_scale": 1.25}
    captured.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured.graph):
        captured.wrapper.run(captured.q, (captured.k, captured.v), out=captured.out, lse=captured.lse, **scales)
    data = captured.fill(host)
    captured.graph.replay()
    bench.compare(captured.wrapper, host, data, captured.out[:4], captured.lse[:4], **scales)


def test_what_a_graph_cannot_serve(bench, rng):
    captured = Captured(bench, bench.spec("causal"), rng)
    index, host, _ = bench.paged(rng, [(1, 300)] * 4, 16)
    captured.q, captured.out, captured.lse = captured.q[:8], captured.out[:8], captured.lse[:8]
    captured.capture(index)
    for requests, message in (
        ([(1, 3)] * 9, "9 tokens, but a CUDA graph has captured tensors of 8 rows"),
        ([(1, 3)] * 25, "requests 25, but the wrapper was declared with max_requests=24"),
        ([(1, 901)], "kv_len 901, but the wrapper was declared with max_kv_len=900"),
    ):
        with pytest.raises(PlanError, match=message):
            captured.wrapper.plan(bench.paged(rng, requests, 16)[0])
    table = np.full((1, 1), captured.pages, np.int32)
    far = attnloom.storage_format("page_table").build_index([1], [3], 16, block_tables=table)
    with pytest.raises(PlanError, match=f"page {captured.pages}, but a CUDA graph has captured a cache of"):
        captured.wrapper.plan(far)
    data = captured.fill(host)
    captured.graph.replay()
    captured.check(host, data)


def test_planning_under_capture(bench, rng):
    captured = Captured(bench, bench.spec("causal"), rng)
    index, _, _ = bench.paged(rng, [(1, 300)] * 4, 16)
    captured.wrapper.plan(index)
    captured.run()
    with torch.cuda.graph(captured.graph):
        with pytest.raises(PlanError, match="while a CUDA graph is captured"):
            captured.wrapper.plan(index)
        captured.run()
