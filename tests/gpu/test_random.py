"""Random batches against the float64 oracle: every variant, dtype, head dim, group, page size and layout."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch
from gpu.bench import HARDER

GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
LAYOUTS = ("plain", "fused", "hnd", "layers", "padded")
PAGES = (1, 3, 16, 64)
EDGES = (0, 1, 15, 16, 17, 63, 64, 65, 128)
NAMES = (
    "causal", "plain", "soft_cap", "window", "alibi", "sigmoid", "qk_norm", "e4m3", "e5m2", "e4m3_rope",
    "d80", "d96", "d112", "d192", "d256", "rows32", "rows64",
)  # fmt: skip


def random_requests(rng):
    """`(qo_len, kv_len)` of up to six requests: decode steps, prefills, empty ones, more queries than keys."""
    requests = []
    for _ in range(int(rng.integers(1, 7))):
        kv = int(rng.choice(EDGES)) if rng.random() < 0.4 else int(rng.integers(0, 600))
        kind = rng.random()
        qo = 1 if kind < 0.5 else 0 if kind < 0.6 else int(rng.integers(2, 9) if kind < 0.85 else rng.integers(9, 130))
        requests.append((qo, kv))
    return requests


def scales_of(spec, rng):
    if not spec.kv_dtype.startswith("float8"):
        return {}
    per_head = torch.tensor(rng.uniform(0.5, 1.5, (2, spec.num_kv_heads)), dtype=torch.float32, device="cuda")
    return {"k_scale": per_head[0], "v_scale": per_head[1]} if rng.random() < 0.5 else {"k_scale": 0.5, "v_scale": 1.5}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_batches(bench, name, seed):
    rng = np.random.default_rng(1000 * seed + NAMES.index(name))
    spec = bench.spec(name)
    if name not in ("window", "rows64"):
        group, kv_heads = int(rng.choice(GROUPS)), int(rng.integers(1, 4))
        spec = bench.spec(name, num_qo_heads=group * kv_heads, num_kv_heads=kv_heads)
    workers = None if seed == 0 else int(rng.choice([1, 3, 17, 132]))
    wrapper = attnloom.AttentionWrapper(spec, "cuda", num_workers=workers)
    layout = str(rng.choice(LAYOUTS))
    page_size = int(rng.choice(PAGES))
    index, host, data = bench.batch(
        rng,
        spec,
        random_requests(rng),
        page_size,
        layout=layout,
        index_dtype=rng.choice([np.int32, np.int64]),
        on_device=bool(rng.random() < 0.5),
    )
    bench.check(wrapper, index, host, data, scale=HARDER.get(name, 1.0), **scales_of(spec, rng))


@pytest.mark.parametrize("group", GROUPS)
def test_every_group(bench, rng, group):
    spec = bench.spec("causal", num_qo_heads=2 * group, num_kv_heads=2)
    index, host, data = bench.batch(rng, spec, [(1, 300), (1, 1), (5, 77), (1, 0), (40, 200)])
    bench.check(bench.wrapper(spec), index, host, data)


@pytest.mark.parametrize("page_size", (1, 3, 16, 64, 300))
def test_long_decode_is_split(bench, rng, page_size):
    spec = bench.spec("causal")
    index, host, data = bench.batch(rng, spec, [(1, 2900), (1, 37), (1, 640)], page_size, on_device=True)
    wrapper = bench.wrapper(spec)
    bench.check(wrapper, index, host, data)
    assert wrapper.workspace_size() > 0


def test_one_long_prefill(bench, rng):
    spec = bench.spec("causal", num_qo_heads=4, num_kv_heads=2)
    index, host, data = bench.batch(rng, spec, [(700, 900)])
    bench.check(bench.wrapper(spec), index, host, data)


@pytest.mark.parametrize("magnitude", [0.01, 30.0])
def test_magnitudes(bench, rng, magnitude):
    spec = bench.spec("causal")
    index, host, data = bench.batch(rng, spec, [(1, 400), (60, 150)], magnitude=magnitude)
    bench.check(bench.wrapper(spec), index, host, data, scale=2.0)


def test_parameters_of_a_run(bench, rng):
    spec = bench.spec("soft_cap")
    wrapper = bench.wrapper(spec)
    index, host, data = bench.batch(rng, spec, [(1, 90), (9, 50)])
    wrapper.plan(index)
    for cap in (1.0, 50.0):
        out, lse = bench.run(wrapper, data, params={"soft_cap.cap": cap})
        bench.compare(wrapper, host, data, out, lse, params={"soft_cap.cap": cap})


def test_windows_of_a_plan(bench, rng):
    spec = bench.spec("window")
    wrapper = bench.wrapper(spec)
    index, host, data = bench.batch(rng, spec, [(1, 500), (70, 170), (1, 3)])
    for left in (0, 100, -1):
        bench.check(wrapper, index, host, data, params={"sliding_window.left": left}, scale=2.0)
