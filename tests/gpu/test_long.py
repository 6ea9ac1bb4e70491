"""The second kernel of a wrapper on Hopper, for batches whose rows see many keys: which it takes, and the oracle."""

from __future__ import annotations

import attnloom
import attrs
import pytest
import torch
from attnloom.engines import long
from attnloom.errors import PlanError, UnsupportedError
from attnloom.targets import target_of
from gpu.bench import HARDER

LONG = [(300, 700), (1, 70), (200, 263), (520, 520), (65, 64), (3, 190), (0, 5), (128, 0)]
"""Rows and keys that end inside tiles, on their edges, and before them; several whole tiles; mostly many rows."""

SHORT = [(1, 130), (1, 0), (1, 700)]


@pytest.fixture(autouse=True)
def only_where_it_runs():
    if "wgmma" not in target_of(torch.device("cuda", 0)).families:
        pytest.skip("the device has no wgmma")


def check(bench, rng, spec, requests=LONG, page_size=16, *, scale=1.0, **how):
    """A batch that the second kernel computes."""
    wrapper = bench.wrapper(spec)
    params = how.pop("params", None)
    index, host, data = bench.batch(rng, spec, requests, page_size, **how)
    out = bench.check(wrapper, index, host, data, params=params, scale=scale)
    assert wrapper._side is wrapper._long, wrapper.kernel.tiles.why
    return wrapper, index, data, out


@pytest.mark.parametrize("page_size", (8, 16, 24, 128, 200))
@pytest.mark.parametrize("name", ("plain", "causal", "d80", "d112"))
def test_head_dims_and_pages(bench, rng, name, page_size):
    check(bench, rng, bench.spec(name), page_size=page_size)


@pytest.mark.parametrize("name", ("soft_cap", "alibi", "capped_alibi", "sigmoid", "qk_norm", "window"))
def test_variants(bench, rng, name):
    check(bench, rng, bench.spec(name), scale=HARDER.get(name, 1.0))


@pytest.mark.parametrize("group", (1, 3, 8, 32))
def test_groups(bench, rng, group):
    spec = bench.spec("causal", num_qo_heads=2 * group, num_kv_heads=2)
    check(bench, rng, spec, [(700, 900), (513, 1000), (520, 520)])


@pytest.mark.parametrize("layout", ("fused", "hnd", "padded"))
def test_layouts(bench, rng, layout):
    check(bench, rng, bench.spec("causal"), layout=layout)


@pytest.mark.parametrize("left", (0, 20, 127, 128, 300))
def test_windows(bench, rng, left):
    spec = bench.spec("window", variants=["sliding_window", "sinks"], num_qo_heads=8, num_kv_heads=8)
    check(bench, rng, spec, [(600, 1400), (700, 700)], params={"sliding_window.left": left}, scale=2.0)


def test_a_dense_batch(bench, rng):
    spec = bench.spec("causal")
    index = attnloom.storage_format("dense").build_index([300, 700], [900, 700])
    data = bench.tensors(rng, spec, index, 1)
    wrapper = bench.wrapper(spec)
    bench.check(wrapper, index, index, data)
    assert wrapper._side is wrapper._long


def test_many_units_of_both_tile_classes(bench, rng):
    spec = bench.spec("causal", num_qo_heads=16, num_kv_heads=8)
    wrapper, *_ = check(bench, rng, spec, [(1500, 1500), *[(1, 300)] * 7, (2000, 2100), (9, 0)] * 3, scale=2.0)
    assert {item.tile_class for item in wrapper._plan.view.decode().items} == {0, 1}


def test_a_split_tile(bench, rng):
    spec = bench.spec("causal", num_qo_heads=8, num_kv_heads=1)
    wrapper, *_ = check(bench, rng, spec, [(64, 9000)])
    assert wrapper.workspace_size() > 0


def test_kernels_in_turns(bench, rng):
    """Plans of both kernels share a workspace, and each is whole when the other takes over; so on two streams."""
    spec = bench.spec("causal", num_qo_heads=8, num_kv_heads=1)
    wrapper = attnloom.AttentionWrapper(spec, "cuda")
    batches = [bench.batch(rng, spec, requests) for requests in ([(64, 9000)], SHORT, LONG)]
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()) * 3:
        for index, host, data in batches:
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                bench.check(wrapper, index, host, data)
            assert (wrapper._side is wrapper._long) == (index.num_tokens != len(SHORT))


def test_same_bits_again(bench, rng):
    wrapper, _, data, (first, _) = check(bench, rng, bench.spec("causal"))
    assert torch.equal(first.view(torch.int16), bench.run(wrapper, data)[0].view(torch.int16))


def test_a_captured_graph_keeps_its_kernel(bench, rng):
    spec = bench.spec("causal")
    wrapper = attnloom.AttentionWrapper(spec, "cuda")
    index, host, data = bench.batch(rng, spec, LONG)
    out, _ = bench.check(wrapper, index, host, data)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.run(data.dq, data.kv, out=out)
    short, short_host, _ = bench.batch(rng, spec, SHORT)
    wrapper.plan(index)
    out.fill_(float("nan"))
    graph.replay()
    bench.compare(wrapper, host, data, out, None)
    assert wrapper._side is wrapper._long
    wrapper.plan(short)
    assert wrapper._side is wrapper._long and short_host is short


@pytest.mark.parametrize("before", ["planned", "reserved", "nothing"])
def test_a_graph_that_transforms_keys_serves_what_its_workspace_holds(bench, rng, before):
    spec = bench.spec("causal", variants=["rope", "causal"])
    wrapper = attnloom.AttentionWrapper(spec, "cuda")
    small, large = ([*LONG, *[(300, 300 + more)] * 2] for more in (300, 3000))
    index, host, data = bench.batch(rng, spec, large)
    few, *_ = bench.batch(rng, spec, small)
    if before == "planned":
        wrapper.plan(index)
    if before == "reserved":
        wrapper.workspace.reserve(200 << 20)
    wrapper.plan(few)
    assert wrapper._side is wrapper._long and wrapper.transforms_ahead()
    out = torch.empty_like(data.dq)
    wrapper.run(data.dq, data.kv, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.run(data.dq, data.kv, out=out)
    if before == "nothing":
        with pytest.raises(PlanError, match=r"call wrapper.workspace.reserve\(\d+\)"):
            wrapper.plan(index)
        return
    wrapper.plan(index)
    out.fill_(float("nan"))
    graph.replay()
    bench.compare(wrapper, host, data, out, None, scale=2.0)


@pytest.mark.parametrize("requests, page_size", [(SHORT, 16), (LONG, 1), ([(40, 90)] * 9, 16)])
def test_other_batches_stay_with_the_first_kernel(bench, rng, requests, page_size):
    wrapper = bench.wrapper(bench.spec("causal"))
    index, host, data = bench.batch(rng, wrapper.spec, requests, page_size)
    bench.check(wrapper, index, host, data)
    assert wrapper._side is wrapper._usual


@pytest.mark.parametrize("how", ({"max_requests": 9}, {"num_workers": 9}))
def test_wrappers_of_one_kernel(bench, how):
    assert bench.wrapper(bench.spec("causal"), **how)._engine.long_spec is None
    assert bench.wrapper(bench.spec("causal", batch_invariant=True))._engine.long_spec is None
    assert bench.wrapper(bench.spec("e4m3"))._engine.long_spec is None


def test_tiles_that_a_spec_gives(bench, rng):
    tiles = attnloom.TileChoice(short=attnloom.Tile(16, 128, "mma"), tall=long.TALL)
    spec = bench.spec("causal", tile=tiles)
    index, host, data = bench.batch(rng, spec, [*LONG, *SHORT], 1)
    bench.check(bench.wrapper(spec), index, host, data)
    with pytest.raises(UnsupportedError, match="take a t_kv of 64"):
        bench.wrapper(attrs.evolve(bench.spec("window"), tile=tiles), max_requests=9)
