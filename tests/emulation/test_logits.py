"""What kernels make of logits that become lines or curves: any slope, cap and scale, wherever the keys stand."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch
from attnloom import Param, TensorParam, Variant
from emulation.bench import AMPERE, HOPPER, KERNELS
from gpu.bench import SPECS

LINES = {
    "alibi": (AMPERE, "alibi", {"dtype": "float16"}),
    "wgmma_alibi": (HOPPER, "alibi", {}),
}
CURVES = {"soft_cap": (AMPERE, "soft_cap", {"dtype": "float16"}), "wgmma_soft_cap": (HOPPER, "soft_cap", {})}
REQUESTS = [(1, 330), (70, 300), (3, 2), (1, 0)]
SLOPES = np.float32([0, -0.004, 0.06, 0.3, 0.8, 4, -0.7, 1e-6])


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    for name, kernel in {**LINES, **CURVES}.items():
        monkeypatch.setitem(KERNELS, name, kernel)


def logits_variant(make_package, struct, text, reference, **fields):
    """A variant in a package of its own."""
    name = struct.lower()
    package = make_package(name, {"variant.h": text, "reference.py": reference})
    return Variant(
        name=name,
        struct=struct,
        header="variant.h",
        package=package,
        functors=("logits_transform",),
        reference=f"{package}.reference:{struct}",
        **fields,
    )


def scaled(monkeypatch, kernel, sm_scale):
    """The name of a kernel whose spec has that scale."""
    arch, name, changes = KERNELS[kernel]
    monkeypatch.setitem(KERNELS, f"{kernel} {sm_scale}", (arch, name, {**changes, "sm_scale": sm_scale}))
    return f"{kernel} {sm_scale}"


@pytest.mark.parametrize("sm_scale", (0.125, 1e-5, 0.0, -0.3))
@pytest.mark.parametrize("kernel", LINES)
def test_lines(bench, rng, monkeypatch, kernel, sm_scale):
    wrapper = bench.wrapper(scaled(monkeypatch, kernel, sm_scale))
    index, host, data = bench.batch(rng, wrapper.spec, REQUESTS)
    bench.check(wrapper, index, host, data, params={"alibi.slopes": torch.from_numpy(SLOPES)})


@pytest.mark.parametrize("kernel", [*LINES, "teams_capped_alibi"])
def test_lines_of_listed_keys(bench, rng, kernel):
    wrapper = bench.wrapper(kernel)
    tables = rng.permutation(60).astype(np.int32).reshape(3, 20)
    parents = [[-1, 0, 0, 1, 1, 2, 5], [-1, 0, 1, 2], [-1, -1, 0]]
    build = attnloom.storage_format("tree_attention").build_index
    index = build([7, 4, 3], [150, 4, 60], 16, parents=parents, block_tables=tables)
    bench.check(wrapper, index, index, bench.tensors(rng, wrapper.spec, index, 60))


TILTED = """
#pragma once
#include <attnloom/variant.h>

struct Tilted {
  static constexpr bool use_softmax = false;
  static constexpr bool linear_in_distance = true;

  template <class Params, class Logit>
  ATTNLOOM_FN Logit logits_transform(const Params& p, Logit logit, const attnloom::Site& site) const {
    return logit - site.distance * p.slopes(site.qo_head) + 0.25f * site.qo_head;
  }
};
"""
TILTED_REFERENCE = """
import numpy as np

class Tilted:
    use_softmax = False

    def logits_transform(self, p, x, site):
        return x - p.slopes[site.qo_head] * (site.kv_pos - site.q_pos) + 0.25 * site.qo_head
"""


@pytest.fixture(scope="module")
def tilted(make_package):
    slopes = TensorParam("slopes", shape=("num_qo_heads",), dtype="float32")
    return logits_variant(make_package, "Tilted", TILTED, TILTED_REFERENCE, use_softmax=False, params=[slopes])


@pytest.mark.parametrize("arch", (AMPERE, HOPPER))
def test_lines_that_are_weights(bench, rng, tilted, monkeypatch, arch):
    slopes = np.linspace(-0.02, 0.03, 8, dtype=np.float32)
    spec = {"variants": [tilted, "causal"], "head_dim": 64, "params": {"tilted.slopes": slopes}}
    monkeypatch.setitem(SPECS, "tilted", spec)
    monkeypatch.setitem(KERNELS, f"tilted_{arch}", (arch, "tilted", {}))
    wrapper = bench.wrapper(f"tilted_{arch}")
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 60), (66, 70)])
    bench.check(wrapper, index, host, data, scale=20.0)


@pytest.mark.parametrize("cap", (0.5, 5.0, 60.0))
@pytest.mark.parametrize("sm_scale", (0.125, 1e-5, 0.0, -0.3))
@pytest.mark.parametrize("kernel", CURVES)
def test_curves(bench, rng, monkeypatch, kernel, sm_scale, cap):
    """Some rows near the cap and beyond, others far from it, in one tile."""
    wrapper = bench.wrapper(scaled(monkeypatch, kernel, sm_scale))
    index, host, data = bench.batch(rng, wrapper.spec, REQUESTS)
    steps = torch.linspace(0, 6, data.q.shape[0]).view(-1, 1, 1)
    data.q.copy_(data.q * steps)
    data.dq.copy_(data.q)
    bench.check(wrapper, index, host, data, params={"soft_cap.cap": cap}, scale=2.0)


@pytest.mark.parametrize("cap", (60.0, 4000.0))
@pytest.mark.parametrize("kernel", CURVES)
def test_curves_beside_hidden_keys(bench, rng, kernel, cap):
    """A row's m follows what it sees alone, and logits as they are on the curve, not as they were before."""
    wrapper = bench.wrapper(kernel)
    index, host, data = bench.batch(rng, wrapper.spec, [(70, 70), (5, 64)])
    shape, dtype = data.q.shape, data.q.dtype
    data.q.copy_(torch.ones(shape, dtype=dtype))
    data.dq.copy_(data.q)
    table = index.levels[0].indices.ravel()
    for page in table[table < len(data.k)]:
        slots = torch.arange(16).view(-1, 1, 1) + 16 * (page % 5)
        data.k[page] = ((slots - 40) * (cap / 1280)).to(dtype).expand(data.k[page].shape)
    bench.check(wrapper, index, host, data, params={"soft_cap.cap": cap}, scale=2.0)


LOW = """
#pragma once
#include <attnloom/variant.h>

struct Low {
  template <class Params>
  ATTNLOOM_FN float logits_transform(const Params& p, float logit, const attnloom::Site& site) const {
    return site.kv_pos >= 150 ? logit : p.low;
  }
};
"""
LOW_REFERENCE = """
import numpy as np

class Low:
    def logits_transform(self, p, x, site):
        return np.where(site.kv_pos >= 150, x, p.low)
"""


@pytest.fixture(scope="module")
def low(make_package):
    return logits_variant(make_package, "Low", LOW, LOW_REFERENCE, params=[Param("low", float)])


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("arch", (AMPERE, HOPPER))
def test_masks_of_finite_logits(bench, rng, low, monkeypatch, arch, dtype):
    """Tiles of nothing but very low logits come first, and leave no trace."""
    monkeypatch.setitem(SPECS, "low", {"variants": [low], "head_dim": 64, "dtype": dtype, "params": {"low.low": -1.0}})
    monkeypatch.setitem(KERNELS, f"low_{arch}_{dtype}", (arch, "low", {}))
    wrapper = bench.wrapper(f"low_{arch}_{dtype}", num_workers=1)
    for logit in (-1e4, -1e9, -1e20, -3.3e38):
        index, host, data = bench.batch(rng, wrapper.spec, [(1, 300), (70, 300)])
        bench.check(wrapper, index, host, data, params={"low.low": logit})
