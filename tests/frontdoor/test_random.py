"""Random batches against the float64 oracle, poison everywhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LAYOUTS = ("plain", "fused", "hnd", "layers", "padded", "separate")
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
PAGES = (1, 3, 16, 64)

lengths = st.one_of(st.sampled_from([0, 1, 15, 16, 17]), st.integers(0, 90))
queries = st.one_of(st.sampled_from([0, 1, 1, 4]), st.integers(0, 40))
requests = st.lists(st.tuples(queries, lengths), min_size=0, max_size=6)
quick = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def heads_of(group, kv_heads):
    return group * kv_heads, kv_heads


@quick
@given(
    requests, st.sampled_from(GROUPS), st.integers(1, 3), st.sampled_from(PAGES), st.sampled_from(LAYOUTS), st.data()
)
def test_causal_pages(bench, batch, group, kv_heads, page_size, layout, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    spec = bench.spec(["causal"], heads=heads_of(group, kv_heads))
    index_dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    index, pages = bench.paged(rng, batch, page_size, index_dtype=index_dtype)
    wrapper = bench.wrapper(spec, num_threads=2, num_workers=data.draw(st.sampled_from([1, 2, 3, 8])))
    bench.check(wrapper, index, bench.tensors(rng, spec, index, pages, layout=layout))


@quick
@given(requests, st.sampled_from(["bfloat16", "float16"]), st.sampled_from(PAGES), st.sampled_from(LAYOUTS))
def test_half_precision_soft_cap(bench, batch, dtype, page_size, layout):
    rng = np.random.default_rng(len(batch))
    spec = bench.spec(["causal", "soft_cap"], head_dim=64, dtype=dtype, params={"soft_cap.cap": 5.0})
    index, pages = bench.paged(rng, batch, page_size)
    bench.check(bench.wrapper(spec, num_workers=3), index, bench.tensors(rng, spec, index, pages, layout=layout))


@quick
@given(requests, st.sampled_from(["float8_e4m3fn", "float8_e5m2"]), st.booleans(), st.sampled_from(LAYOUTS))
def test_float8_cache_with_scales(bench, batch, kv_dtype, per_head, layout):
    import torch

    rng = np.random.default_rng(len(batch))
    spec = bench.spec(["causal"], head_dim=64, dtype="bfloat16", kv_dtype=kv_dtype, out_dtype="float32")
    index, pages = bench.paged(rng, batch, 16)
    data = bench.tensors(rng, spec, index, pages, layout=layout)
    scales = {"k_scale": torch.tensor([0.5, 1.5]), "v_scale": torch.tensor([2.0, 0.25])}
    if not per_head:
        scales = {"k_scale": 0.5, "v_scale": 2.0}
    bench.check(bench.wrapper(spec, num_workers=3), index, data, scale=1000, **scales)


@quick
@given(requests, st.sampled_from(PAGES), st.integers(0, 40), st.sampled_from([-1, 0, 3]))
def test_rope_window_sinks(bench, batch, page_size, left, right):
    rng = np.random.default_rng(left)
    spec = bench.windowed(left, right)
    index, pages = bench.paged(rng, batch, page_size)
    bench.check(bench.wrapper(spec, num_workers=3), index, bench.tensors(rng, spec, index, pages), scale=5)


@quick
@given(requests, st.sampled_from(PAGES))
def test_sigmoid_has_no_softmax(bench, batch, page_size):
    rng = np.random.default_rng(len(batch))
    spec = bench.spec(["causal", "sigmoid"])
    index, pages = bench.paged(rng, batch, page_size)
    bench.check(bench.wrapper(spec, num_workers=3), index, bench.tensors(rng, spec, index, pages), scale=10)


@pytest.mark.parametrize("head_dim, head_dim_v", [(72, 40), (192, 112)])
def test_odd_and_unequal_head_dims(bench, rng, head_dim, head_dim_v):
    spec = bench.spec(["causal"], head_dim=head_dim, head_dim_v=head_dim_v)
    index, pages = bench.paged(rng, [(5, 33), (1, 70), (20, 20)], 16)
    bench.check(bench.wrapper(spec, num_workers=3), index, bench.tensors(rng, spec, index, pages, layout="padded"))
