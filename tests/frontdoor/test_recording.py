"""The functor contract, by recording what functors are given: here a variant that is no plugin but an object."""

from __future__ import annotations

import attnloom
import attrs
import numpy as np
import pytest
from attnloom import TensorParam, Variant

HEADER = """
#pragma once
#include <attnloom/variant.h>

struct Recorder {
  static int32_t* log(const int32_t* data) { return const_cast<int32_t*>(data); }

  template <class Params>
  ATTNLOOM_FN float logits_transform(const Params& p, float logit, const attnloom::Site& s) const {
    if (s.q_index < 0 || s.q_index >= s.qo_len || s.kv_index < 0 || s.kv_index >= s.kv_len) {
      log(p.strays.data)[0] = 1;
      return logit;
    }
    int32_t* seen = log(p.pairs.data) + s.request * p.pairs.stride[0] + s.qo_head * p.pairs.stride[1] +
                    s.q_index * p.pairs.stride[2] + s.kv_index * p.pairs.stride[3];
    seen[0] += 1;
    seen[1] = s.kv_head;
    seen[2] = s.q_pos;
    seen[3] = s.kv_pos;
    seen[4] = s.qo_len;
    seen[5] = s.kv_len;
    return logit;
  }

  template <class Params, class Row>
  ATTNLOOM_FN void query_transform(const Params& p, Row&, const attnloom::Site& s) const {
    if (s.q_index < 0 || s.q_index >= s.qo_len || s.kv_index != -1) {
      log(p.strays.data)[1] = 1;
      return;
    }
    log(p.rows.data)[s.request * p.rows.stride[0] + s.qo_head * p.rows.stride[1] + s.q_index] = s.q_pos + 1000;
  }

  template <class Params, class Row>
  ATTNLOOM_FN void key_transform(const Params& p, Row&, const attnloom::Site& s) const {
    if (s.kv_index < 0 || s.kv_index >= p.keys.shape[2] || s.q_index != -1) {
      log(p.strays.data)[2] = 1;
      return;
    }
    const int64_t request = s.request < 0 ? p.keys.shape[0] - 1 : s.request;  // none: several requests share the row
    log(p.keys.data)[request * p.keys.stride[0] + s.kv_head * p.keys.stride[1] + s.kv_index] = s.kv_pos + 1000;
  }

  template <class Params, class Row>
  ATTNLOOM_FN void output_transform(const Params& p, Row& row, const attnloom::Site& s) const {
    log(p.outputs.data)[s.request * p.outputs.stride[0] + s.qo_head * p.outputs.stride[1] + s.q_index] += 1;
    row.each([](int, float& x) { x = 2 * x; });
  }
};
"""

REFERENCE = """
class Recorder:
    def logits_transform(self, p, x, site): return x
    def query_transform(self, p, x, site): return x
    def key_transform(self, p, x, site): return x
    def output_transform(self, p, x, site): return 2 * x
"""

MOST = 64


@pytest.fixture(scope="module")
def recorder(make_package):
    tensors = {"pairs": 5, "rows": 3, "keys": 3, "outputs": 3, "strays": 1}
    return Variant(
        name="recorder",
        struct="Recorder",
        header="recorder.h",
        package=make_package("frontdoor_recorder", {"recorder.h": HEADER, "reference.py": REFERENCE}),
        functors={"logits_transform", "query_transform", "key_transform", "output_transform"},
        params=[TensorParam(name, dtype="int32", shape=("*",) * rank) for name, rank in tensors.items()],
        reference="frontdoor_recorder.reference:Recorder",
    )


def blank(requests, heads):
    return {
        "recorder.pairs": np.zeros((requests, heads, MOST, MOST, 6), np.int32),
        "recorder.rows": np.zeros((requests, heads, MOST), np.int32),
        "recorder.keys": np.zeros((requests + 1, heads, MOST), np.int32),
        "recorder.outputs": np.zeros((requests, heads, MOST), np.int32),
        "recorder.strays": np.zeros(3, np.int32),
    }


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("variants", [[], ["causal"]], ids=["plain", "causal"])
def test_what_functors_are_given(bench, rng, recorder, variants, workers):
    requests = [(7, 60), (1, 33), (40, 5), (0, 9), (3, 0), (17, 17)]
    spec = bench.spec([*variants, recorder])
    index, pages = bench.paged(rng, requests, 3)
    check(bench, rng, spec, workers, index, pages)


@pytest.mark.parametrize("workers", [1, 5])
def test_what_functors_are_given_on_every_level(bench, rng, recorder, workers):
    shared = list(range(16))
    tables = [[*shared, 16, 17, 18], [*shared, 19], [*shared, 20, 21], [22]]
    index = attnloom.storage_format("radix_tree").build_index([2, 1, 4, 2], [57, 50, 53, 3], 3, block_tables=tables)
    assert len(index.levels) > 1
    check(bench, rng, bench.spec(["causal", recorder]), workers, attrs.evolve(index, single=None), 23)


def check(bench, rng, spec, workers, index, pages):
    wrapper = bench.wrapper(spec, num_threads=2, num_workers=workers)
    data = bench.tensors(rng, spec, index, pages)
    log = blank(index.num_requests, spec.num_qo_heads)
    bench.check(wrapper, index, data, params=log)
    pairs = log["recorder.pairs"]
    assert log["recorder.strays"].tolist() == [0, 0, 0], "a functor was given an index past its request"

    dense = index.to_dense()
    visible = dense.visible.copy()
    if "causal" in spec.variants:
        visible &= dense.kv_pos <= dense.q_pos[:, None]
    qo_lens = np.diff(index.qo_indptr)
    for request, (qo_len, kv_len) in enumerate(zip(qo_lens, index.kv_len, strict=True)):
        tokens = slice(index.qo_indptr[request], index.qo_indptr[request + 1])
        seen = pairs[request, :, :qo_len, :kv_len]
        assert pairs[request].sum() == seen.sum()
        assert (seen[..., 0] >= visible[tokens, :kv_len]).all(), "a visible pair was never given"
        given = seen[..., 0] > 0
        heads = np.arange(spec.num_qo_heads)[:, None, None] // spec.group
        facts = [heads, dense.q_pos[tokens, None], dense.kv_pos[tokens, :kv_len], qo_len, kv_len]
        for place, fact in enumerate(facts, 1):
            assert (seen[..., place] == fact)[given].all()
        has_keys = visible[tokens].any(axis=1)
        rows = log["recorder.rows"][request, :, :qo_len]
        assert (rows[:, has_keys] == dense.q_pos[tokens][has_keys] + 1000).all()
        own, shared = (log["recorder.keys"][place, : spec.num_kv_heads, :kv_len] for place in (request, -1))
        keys = np.maximum(own, shared)
        needed = visible[tokens, :kv_len].any(axis=0)
        assert (keys[:, needed] == dense.kv_pos[tokens, :kv_len].max(axis=0, initial=-1)[needed] + 1000).all()
        assert (log["recorder.outputs"][request, :, :qo_len] == 1).all(), "finalize runs once a row"
