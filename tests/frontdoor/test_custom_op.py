from __future__ import annotations

import attnloom
import pytest
import torch
from attnloom import AttentionWrapper


@pytest.fixture
def case(bench, rng):
    wrapper = AttentionWrapper(bench.spec(), num_threads=1)
    index, pages = bench.paged(rng, [(4, 20), (1, 9)], 16)
    return wrapper, index, bench.tensors(rng, wrapper.spec, index, pages)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_graph_that_sees_new_plans(case, bench, backend):
    wrapper, index, data = case
    graphs = []

    def step(q, k, v):
        out, lse = wrapper.run(q * 2, (k, v), return_lse=True)
        return out + 1, lse, wrapper.run(q, (k, v), v_scale=2.0)

    def counted(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend if backend != "eager" else counted, fullgraph=True)
    wrapper.plan(index)
    with torch.no_grad():
        for expected, given in zip(step(data.q, *data.kv), compiled(data.q, *data.kv), strict=True):
            assert torch.allclose(expected, given)
        shorter = attnloom.storage_format("page_table").build_index([4, 1], [5, 3], 16, block_tables=[[1], [0]])
        wrapper.plan(shorter)
        k, v = (torch.nan_to_num(cache) for cache in data.kv)
        for expected, given in zip(step(data.q, k, v), compiled(data.q, k, v), strict=True):
            assert torch.allclose(expected, given)
    if backend == "eager":
        assert len(graphs) == 1 and "attnloom" in graphs[0].code


def test_operators_by_name(case):
    wrapper, index, data = case
    wrapper.plan(index)
    expected = wrapper.run(data.q, data.kv)
    assert torch.equal(torch.ops.attnloom.run(data.q, *data.kv, wrapper.name, None, None), expected)
    out = torch.zeros_like(expected)
    torch.ops.attnloom.run_into(data.q, *data.kv, out, wrapper.name, None, None)
    assert torch.equal(out, expected)
    with pytest.raises(attnloom.RunError, match="'nobody'"):
        torch.ops.attnloom.run(data.q, *data.kv, "nobody", None, None)


def test_operators_are_well_formed(case):
    wrapper, index, data = case
    wrapper.plan(index)
    for operator in (torch.ops.attnloom.run, torch.ops.attnloom.run_with_lse):
        torch.library.opcheck(operator, (data.q, *map(torch.nan_to_num, data.kv), wrapper.name, None, None))
