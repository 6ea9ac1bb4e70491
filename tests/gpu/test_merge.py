"""Rows made of parts: merged by the last of their items, or by a launch of their own."""

from __future__ import annotations

import attnloom
import pytest
import torch
from attnloom.errors import PlanError
from gpu.bench import two_levels

SPLIT = {
    "two parts": [(1, 300)] * 9,
    "many parts": [(1, 9000)],
    "several tokens": [(3, 2500), (1, 40), (0, 9), (4, 1000)],
    "prefill": [(130, 900), (1, 70)],
}


@pytest.mark.parametrize("name", ["causal", "window", "sigmoid", "d80", "d256"])
@pytest.mark.parametrize("batch", SPLIT)
def test_runs_of_one_plan_agree_to_the_bit(bench, rng, name, batch):
    wrapper = bench.wrapper(bench.spec(name))
    index, host, data = bench.batch(rng, wrapper.spec, SPLIT[batch])
    params = {"sliding_window.left": -1} if name == "window" else None
    scale = 8 if name == "sigmoid" else 2  # weights that do not sum to 1 add their rounding up
    out, lse = bench.check(wrapper, index, host, data, params=params, scale=scale)
    for _ in range(3):  # the counters of arrivals are set back by each run
        again, again_lse = bench.run(wrapper, data)
        assert torch.equal(out, again) and (lse is None or torch.equal(lse, again_lse))


def test_every_number_of_parts(bench, rng):
    """Half a warp merges 16 parts at a time: one round, two, more."""
    wrapper = bench.wrapper(bench.spec("causal"))
    seen = set()
    for kv in (64, 200, 700, 1100, 2100, 2300, 4400, 9000):
        index, host, data = bench.batch(rng, wrapper.spec, [(1, kv)])
        bench.check(wrapper, index, host, data, scale=2)
        seen.add(max((len(merge.parts) for merge in wrapper._plan.view.decode().merges), default=1))
    assert min(seen) == 1 and any(16 < parts <= 32 for parts in seen) and max(seen) > 32, seen


def test_a_graph_of_one_launch_serves_one_level(bench, rng):
    wrapper = attnloom.AttentionWrapper(bench.spec("causal"), "cuda")
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 900)] * 20)
    wrapper.plan(index)
    out, lse = bench.run(wrapper, data)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.run(data.dq, data.kv, out=out, lse=lse)
    with pytest.raises(PlanError, match="has 2 levels, but a CUDA graph has captured a run of one"):
        wrapper.plan(two_levels(50, 20)[0])
    out.fill_(float("nan"))
    graph.replay()
    bench.compare(wrapper, host, data, out, lse)


def test_levels_are_merged_by_a_launch_of_their_own(bench, rng):
    wrapper = bench.wrapper(bench.spec("causal"))
    index, pages = two_levels(300, 24)
    data = bench.tensors(rng, wrapper.spec, index, pages)
    out, lse = bench.check(wrapper, index, index, data, scale=2)
    assert wrapper._plan.args.merge_pass
    assert all(map(torch.equal, (out, lse), bench.run(wrapper, data)))
