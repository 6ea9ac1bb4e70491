"""Every functor on the device: a variant that has them all against its reference, and what functors are given."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch
from attnloom import Param, TensorParam, Variant

EVERYTHING = """
#pragma once
#include <attnloom/variant.h>

struct Everything {
  template <class Params, class Row>
  ATTNLOOM_FN void query_transform(const Params& p, Row& row, const attnloom::Site& s) const {
    const float tilt = p.tilt * (s.q_pos % 7) + 0.05f * s.qo_head;
    row.each([&](int d, float& x) { x = x * (1.0f + tilt) + 0.001f * d; });
  }
  template <class Params, class Row>
  ATTNLOOM_FN void key_transform(const Params&, Row& row, const attnloom::Site& s) const {
    const float mean = row.sum([](int, float x) { return x * x; }) / Row::dims;
    const float factor = attnloom::rsqrt(mean + 1.0f) * (1.0f + 0.01f * (s.kv_pos % 5));
    row.each([&](int, float& x) { x *= factor; });
  }
  template <class Params, class Row>
  ATTNLOOM_FN void value_transform(const Params&, Row& row, const attnloom::Site& s) const {
    row.template pairs<attnloom::Pair::adjacent>([&](int, float& a, float& b) {
      const float first = a;
      a = b * (1.0f + 0.1f * s.kv_head);
      b = -first;
    });
  }
  template <class Params, class Row>
  ATTNLOOM_FN void output_transform(const Params& p, Row& row, const attnloom::Site& s) const {
    row.each([&](int d, float& x) { x = x * p.level() + 0.01f * (s.q_index % 3) + 0.001f * d; });
  }
  template <class Params>
  ATTNLOOM_FN float logits_transform(const Params& p, float logit, const attnloom::Site& s) const {
    return logit * p.level() - 0.02f * attnloom::abs(float(s.q_pos - s.kv_pos) / s.kv_len);
  }
  template <class Params>
  ATTNLOOM_FN bool logits_mask(const Params&, const attnloom::Site& s) const {
    return (s.kv_index + s.q_index) % 3 != 0;
  }
};
"""

RECORDER = """
#pragma once
#include <attnloom/variant.h>

struct Recorder {
  static ATTNLOOM_FN int32_t* log(const int32_t* data) { return const_cast<int32_t*>(data); }

  template <class Params>
  ATTNLOOM_FN float logits_transform(const Params& p, float logit, const attnloom::Site& s) const {
    if (s.request < 0 || s.q_index < 0 || s.q_index >= s.qo_len || s.kv_index < 0 || s.kv_index >= s.kv_len) {
      log(p.strays.data)[0] = 1;
      return logit;
    }
    int32_t* seen = log(p.pairs.data) + s.request * p.pairs.stride[0] + s.qo_head * p.pairs.stride[1] +
                    s.q_index * p.pairs.stride[2] + s.kv_index * p.pairs.stride[3];
    seen[0] = 1;
    seen[1] = s.kv_head;
    seen[2] = s.q_pos;
    seen[3] = s.kv_pos;
    seen[4] = s.qo_len;
    seen[5] = s.kv_len;
    return logit;
  }
  template <class Params, class Row>
  ATTNLOOM_FN void output_transform(const Params& p, Row& row, const attnloom::Site& s) const {
    int32_t* seen = log(p.outputs.data) + s.request * p.outputs.stride[0] + s.qo_head * p.outputs.stride[1] + s.q_index;
    row.each([&](int d, float& x) {
      if (d == 0) *seen += 1;
      x = 2 * x;
    });
  }
};
"""

REFERENCES = """
import numpy as np

class Everything:
    def query_transform(self, p, x, site):
        tilt = p.tilt * (site.q_pos % 7) + 0.05 * site.qo_head
        return x * (1 + tilt)[..., None] + 0.001 * np.arange(x.shape[-1])
    def key_transform(self, p, x, site):
        factor = 1 / np.sqrt((x * x).mean(-1) + 1) * (1 + 0.01 * (site.kv_pos % 5))
        return x * factor[..., None]
    def value_transform(self, p, x, site):
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 1::2] * (1 + 0.1 * site.kv_head)[..., None]
        out[..., 1::2] = -x[..., 0::2]
        return out
    def output_transform(self, p, x, site):
        return x * float(p.level) + (0.01 * (site.q_index % 3))[..., None] + 0.001 * np.arange(x.shape[-1])
    def logits_transform(self, p, x, site):
        return x * float(p.level) - 0.02 * np.abs((site.q_pos - site.kv_pos) / site.kv_len)
    def logits_mask(self, p, site):
        return (site.kv_index + site.q_index) % 3 != 0

class Recorder:
    def logits_transform(self, p, x, site): return x
    def output_transform(self, p, x, site): return 2 * x
"""

MOST = 96


@pytest.fixture(scope="module")
def made(make_package):
    """The two variants, as objects."""
    package = make_package(
        "gpu_functors", {"everything.h": EVERYTHING, "recorder.h": RECORDER, "reference.py": REFERENCES}
    )
    transforms = {"query_transform", "key_transform", "value_transform", "output_transform", "logits_transform"}
    return {
        "everything": Variant(
            name="everything",
            struct="Everything",
            header="everything.h",
            package=package,
            functors=transforms | {"logits_mask"},
            params=[Param("tilt", float, default=0.02), TensorParam("level", shape=())],
            reference="gpu_functors.reference:Everything",
        ),
        "recorder": Variant(
            name="recorder",
            struct="Recorder",
            header="recorder.h",
            package=package,
            functors={"logits_transform", "output_transform"},
            params=[
                TensorParam(name, dtype="int32", shape=("*",) * rank)
                for name, rank in {"pairs": 5, "outputs": 3, "strays": 1}.items()
            ],
            reference="gpu_functors.reference:Recorder",
        ),
    }


def spec_of(variants, params=None, **fields):
    fields = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": "float16", **fields}
    return attnloom.AttentionSpec(variants, params=params or {}, **fields)


@pytest.mark.parametrize("kv_dtype", ["float16", "float8_e4m3fn"])
def test_a_variant_with_every_functor(bench, rng, made, kv_dtype):
    level = torch.tensor(0.9, device=bench.device)
    spec = spec_of(["causal", made["everything"]], {"everything.level": level}, kv_dtype=kv_dtype)
    wrapper = attnloom.AttentionWrapper(spec, bench.device)
    scales = {} if kv_dtype == "float16" else {"k_scale": 0.5, "v_scale": 1.5}
    for requests in ([(1, 700), (1, 40), (1, 0)], [(50, 150), (7, 7), (1, 300)]):
        index, host, data = bench.batch(rng, spec, requests)
        wrapper.plan(index)
        out, lse = bench.run(wrapper, data, **scales)
        bench.compare(wrapper, host, data, out, lse, params={"everything.level": np.float32(0.9)}, scale=3, **scales)


def test_0d_tensors_change_under_a_graph(bench, rng, made):
    level = torch.tensor(0.9, device=bench.device)
    spec = spec_of(["causal", made["everything"]], {"everything.level": level})
    wrapper = attnloom.AttentionWrapper(spec, bench.device)
    index, host, data = bench.batch(rng, spec, [(1, 200), (9, 60)])
    wrapper.plan(index)
    out = torch.empty_like(data.dq)
    wrapper.run(data.dq, data.kv, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.run(data.dq, data.kv, out=out)
    for value in (0.5, 1.25):
        level.fill_(value)
        wrapper.plan(index)
        graph.replay()
        bench.compare(wrapper, host, data, out, None, params={"everything.level": np.float32(value)}, scale=3)


@pytest.mark.parametrize("variants", [[], ["causal"]], ids=["plain", "causal"])
def test_what_functors_are_given(bench, rng, made, variants):
    requests = [(7, 60), (1, 33), (40, 5), (0, 9), (3, 0), (17, 17), (1, 90)]
    zeros = {
        "recorder.pairs": torch.zeros(len(requests), 8, MOST, MOST, 6, dtype=torch.int32, device=bench.device),
        "recorder.outputs": torch.zeros(len(requests), 8, MOST, dtype=torch.int32, device=bench.device),
        "recorder.strays": torch.zeros(3, dtype=torch.int32, device=bench.device),
    }
    spec = spec_of([*variants, made["recorder"]], zeros)
    wrapper = attnloom.AttentionWrapper(spec, bench.device)
    index, _, data = bench.batch(rng, spec, requests, 3)
    wrapper.plan(index)
    wrapper.run(data.dq, data.kv)
    pairs = zeros["recorder.pairs"].cpu().numpy()
    assert not zeros["recorder.strays"].any(), "a functor was given an index that is none of the batch"
    for request, (qo, kv) in enumerate(requests):
        q, k = np.arange(MOST)[:, None], np.arange(MOST)[None]
        inside = (q < qo) & (k < kv)
        visible = inside & (k <= kv - qo + q) if variants else inside
        seen = pairs[request]
        assert (seen[:, visible, 0] == 1).all() and not seen[:, ~inside].any()
        given = seen[..., 0] == 1
        heads = np.broadcast_to(np.arange(8)[:, None, None] // 4, given.shape)
        expected = [heads, kv - qo + q, k, np.full_like(q, qo), np.full_like(q, kv)]
        for field, value in enumerate(expected, 1):
            assert np.array_equal(seen[..., field][given], np.broadcast_to(value, given.shape)[given]), field
        outputs = zeros["recorder.outputs"][request].cpu().numpy()
        assert (outputs[:, :qo] >= 1).all() and not outputs[:, qo:].any()
