"""attnloom/math.h on the device against float64."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch
from attnloom import Param, TensorParam, Variant

TURNS = """
#pragma once
#include <attnloom/variant.h>

struct Turns {
  template <class Params, class Row>
  ATTNLOOM_FN void output_transform(const Params& p, Row& row, const attnloom::Site& s) const {
    row.each([&](int d, float& x) {
      float sine, cosine;
      if (s.qo_head == 0) attnloom::sincos(p.a(s.q_index), p.b(d / 2), sine, cosine);
      else attnloom::sincos(p.a(s.q_index) * p.b(d / 2), sine, cosine);
      x = d % 2 ? cosine : sine;
    });
  }
};
"""

CLAMPS = """
#pragma once
#include <attnloom/variant.h>

struct Clamps {
  template <class Params, class Row>
  ATTNLOOM_FN void output_transform(const Params& p, Row& row, const attnloom::Site& s) const {
    const float x = p.x(s.q_index);
    row.each([&](int d, float& y) { y = d % 2 ? attnloom::soft_clamp(x, p.bound) : attnloom::tanh(x); });
  }
};
"""

REFERENCE = """
class {name}:
    def output_transform(self, p, x, site):
        raise NotImplementedError("compared with float64 by the test")
"""


@pytest.fixture(scope="module")
def turns(make_package):
    return Variant(
        name="turns",
        struct="Turns",
        header="turns.h",
        package=make_package("gpu_turns", {"turns.h": TURNS, "reference.py": REFERENCE.format(name="Turns")}),
        functors={"output_transform"},
        params=[TensorParam("a", shape=("*",)), TensorParam("b", shape=("*",))],
        reference="gpu_turns.reference:Turns",
    )


@pytest.fixture(scope="module")
def clamps(make_package):
    files = {"clamps.h": CLAMPS, "reference.py": REFERENCE.format(name="Clamps")}
    return Variant(
        name="clamps",
        struct="Clamps",
        header="clamps.h",
        package=make_package("gpu_clamps", files),
        functors={"output_transform"},
        params=[TensorParam("x", shape=("*",)), Param("bound")],
        reference="gpu_clamps.reference:Clamps",
    )


def test_sine_and_cosine(bench, rng, turns):
    count = 4000
    a = rng.integers(-(2**24), 2**24, count).astype(np.float32)
    a[:1000] = rng.integers(-9, 10, 1000)
    b = (10000.0 ** -rng.uniform(0, 1, 32)).astype(np.float32)
    a_there, b_there = (torch.from_numpy(x).cuda() for x in (a, b))
    spec = attnloom.AttentionSpec(
        [turns], num_qo_heads=2, num_kv_heads=1, head_dim=64, dtype="float16", out_dtype="float32",
        params={"turns.a": a_there, "turns.b": b_there},
    )  # fmt: skip
    index, _, data = bench.batch(rng, spec, [(count, 1)])
    wrapper = attnloom.AttentionWrapper(spec, "cuda")
    wrapper.plan(index)
    out = wrapper.run(data.dq, data.kv).cpu().double().numpy()
    products = (a.astype(np.float64)[:, None] * b, (a[:, None] * b).astype(np.float64))
    for head, angle in enumerate(products):
        assert np.abs(out[:, head, 0::2] - np.sin(angle)).max() < 1e-6
        assert np.abs(out[:, head, 1::2] - np.cos(angle)).max() < 1e-6


@pytest.mark.parametrize("bound", [0.5, 50.0])
def test_hyperbolic_tangent(bench, rng, clamps, bound):
    edges = [0.0, np.inf, -np.inf, np.nan]
    x = np.concatenate([edges, np.linspace(-12, 12, 2001), bound * np.linspace(-12, 12, 2001)]).astype(np.float32)
    spec = attnloom.AttentionSpec(
        [clamps], num_qo_heads=1, num_kv_heads=1, head_dim=64, dtype="float16", out_dtype="float32",
        params={"clamps.x": torch.from_numpy(x).cuda(), "clamps.bound": bound},
    )  # fmt: skip
    index, _, data = bench.batch(rng, spec, [(len(x), 1)])
    wrapper = attnloom.AttentionWrapper(spec, "cuda")
    wrapper.plan(index)
    out = wrapper.run(data.dq, data.kv).cpu().double().numpy()[:, 0]
    for got, limit, error in ((out[:, 0], 1.0, 3e-7), (out[:, 1], bound, 4e-7)):
        np.testing.assert_array_equal(got[:4], [0.0, limit, -limit, np.nan])
        assert np.abs(got[4:] - limit * np.tanh(x[4:] / limit)).max() < error * limit
