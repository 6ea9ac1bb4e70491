"""What bad input gets on the device: both values and what to do, before any launch."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch
from attnloom.errors import PlanError, RunError, UnsupportedError


@pytest.fixture
def planned(bench, rng):
    wrapper = attnloom.AttentionWrapper(bench.spec("causal"), "cuda")
    index, _, data = bench.batch(rng, wrapper.spec, [(1, 90), (5, 50)])
    wrapper.plan(index)
    return wrapper, data


@pytest.mark.parametrize(
    "change, message",
    [
        ({"dq": lambda q: q.cpu()}, "q is on the host, but the kernel runs on cuda:0"),
        ({"kv": lambda kv: (kv[0].cpu(), kv[1])}, "k is on the host, but the kernel runs on cuda:0"),
        ({"kv": lambda kv: (kv[0], kv[1].cpu())}, "v is on the host, but the kernel runs on cuda:0"),
        ({"dq": lambda q: q.half()}, "q is float16, but the spec says bfloat16"),
        ({"dq": lambda q: q[:-1]}, "has 5 tokens, but 6 are planned"),
        ({"dq": lambda q: torch.cat([q, q])}, "has 12 tokens, but 6 are planned"),
        ({"dq": lambda q: q[:, :4]}, "has 4 query heads, but 8 are planned"),
        ({"kv": lambda kv: (kv[0][:, :8], kv[1][:, :8])}, "has 8 slots a page, but 16 are planned"),
        ({"dq": lambda q: torch.nn.functional.pad(q, (1, 3))[..., 1:-3]}, "q begins at an address that is no multiple"),
        ({"dq": lambda q: torch.nn.functional.pad(q, (0, 4))[..., :-4]}, "q has strides .* need multiples of 16 bytes"),
    ],
)
def test_tensors(planned, change, message):
    wrapper, data = planned
    given = {name: make(getattr(data, name)) for name, make in change.items()}
    out = torch.full((6, 8, 128), 7.0, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(RunError, match=message):
        wrapper.run(given.get("dq", data.dq), given.get("kv", data.kv), out=out)
    torch.cuda.synchronize()
    assert (out == 7.0).all()


def test_a_cache_past_the_reach_of_kernels(planned, allocate_gib):
    wrapper, data = planned
    cache = allocate_gib(65, data.kv[0].shape[1:])
    with pytest.raises(RunError, match="k of shape .* spans more than 64 GiB"):
        wrapper.run(data.dq, (cache, cache))


def test_outputs_of_the_host(planned):
    wrapper, data = planned
    with pytest.raises(RunError, match="out is on the host"):
        wrapper.run(data.dq, data.kv, out=torch.empty(6, 8, 128, dtype=torch.bfloat16))
    with pytest.raises(RunError, match="lse is on the host"):
        wrapper.run(data.dq, data.kv, lse=torch.empty(6, 8))
    with pytest.raises(RunError, match="k_scale is torch.float32 on cpu, it must be float32 on cuda:0"):
        wrapper.run(data.dq, data.kv, k_scale=torch.ones(2))


def test_page_ids_past_the_cache(planned):
    wrapper, data = planned
    with pytest.raises(attnloom.IndexFormatError):
        wrapper.run(data.dq, tuple(cache[:2] for cache in data.kv))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"head_dim": 72}, "head_dim 72"),
        ({"dtype": "float32"}, "dtype float32 and kv_dtype float32: CUDA kernels take float16"),
        ({"dtype": "float16", "kv_dtype": "bfloat16"}, "kv_dtype bfloat16 beside dtype float16"),
        ({"head_dim": 128, "head_dim_v": 64}, "head_dim 128 with head_dim_v 64"),
        ({"tile": attnloom.Tile(16, 16)}, "tile family 'host' does not run on sm_"),
        ({"tile": attnloom.Tile(24, 64, "mma")}, "24"),
    ],
)
def test_what_no_kernel_does(bench, fields, message):
    fields = {"dtype": "bfloat16", "head_dim": 64, "num_qo_heads": 8, "num_kv_heads": 2, **fields}
    spec = attnloom.AttentionSpec(["causal"], **fields)
    with pytest.raises((UnsupportedError, ValueError), match=message):
        attnloom.AttentionWrapper(spec, "cuda")


def test_devices_and_workers(bench):
    spec = bench.spec("causal")
    with pytest.raises(UnsupportedError, match=r"there are \d+ CUDA device"):
        attnloom.AttentionWrapper(spec, "cuda:63")
    with pytest.raises(PlanError, match="num_workers is 60000, but cuda:0 holds"):
        attnloom.AttentionWrapper(spec, "cuda", num_workers=60_000)
    with pytest.raises(PlanError, match="num_threads=2 is of host kernels"):
        attnloom.AttentionWrapper(spec, "cuda", num_threads=2)
    with pytest.raises(PlanError, match="the workspace is on cpu, the wrapper on cuda:0"):
        attnloom.AttentionWrapper(spec, "cuda", workspace=attnloom.Workspace())


def test_a_plan_that_fails_leaves_the_last(planned, bench):
    wrapper, data = planned
    expected = bench.run(wrapper, data)
    with pytest.raises(attnloom.ParamError):
        wrapper.plan(wrapper._plan.index, params={"causal.nothing": 1})
    with pytest.raises(PlanError, match="kv_lens is"):
        wrapper.plan(wrapper._plan.index, kv_lens=torch.zeros(3, dtype=torch.int32, device="cuda"))
    host = wrapper._plan.index
    with pytest.raises(UnsupportedError, match="the page ids are on meta"):
        import attrs

        level = attrs.evolve(host.levels[0], indices=torch.zeros(12, dtype=torch.int32, device="meta"))
        wrapper.plan(attrs.evolve(host, levels=[level]))
    assert all(map(torch.equal, bench.run(wrapper, data), expected))


def test_gradients_are_refused(planned):
    wrapper, data = planned
    with pytest.raises(RunError, match="no gradients"):
        wrapper.run(data.dq.clone().requires_grad_(), data.kv)


def test_parameters_on_another_device(bench):
    slopes = np.linspace(0.1, 1, 8, dtype=np.float32)
    spec = bench.spec("alibi", params={"alibi.slopes": torch.from_numpy(slopes)})
    wrapper = attnloom.AttentionWrapper(spec, "cuda")
    index, _, _ = bench.paged(np.random.default_rng(0), [(1, 9)], 16)
    with pytest.raises(attnloom.ParamError, match=r"'alibi.slopes' is on cpu, expected cuda:0"):
        wrapper.plan(index)
