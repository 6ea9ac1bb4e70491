"""Host kernels against float64 over random shapes, formats and splits."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels import handmade
from kernels.cases import page_table, run_and_compare, shared_prefix
from kernels.oracle import Causal, Plain

CAUSAL = handmade.one_variant("#include <attnloom/variants/causal.h>", "attnloom::variants::Causal")
SMALL = {"short": (8, 32), "tall": (24, 64)}
FORMATS = [
    dict(dtype="float32", d=64),
    dict(dtype="bfloat16", d=64),
    dict(dtype="float16", d=80, out_dtype="float32"),
    dict(dtype="float32", d=40, d_v=72),
    dict(dtype="bfloat16", d=72, d_v=192),
    dict(dtype="bfloat16", kv_dtype="float8_e4m3fn", d=96),
    dict(dtype="float32", kv_dtype="float8_e5m2", d=112),
    dict(dtype="float32", kv_dtype="bfloat16", d=1, d_v=3),
]


def quick(examples=25):
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def requests(draw, most=4):
    keys = st.sampled_from([0, 1, 3, 17, 64, 65, 130, 200])
    lens = draw(st.lists(st.tuples(st.integers(0, 20), keys), max_size=most))
    return [qo for qo, _ in lens], [kv for _, kv in lens]


@pytest.mark.parametrize("number", range(len(FORMATS)))
@quick(12)
@given(
    lens=requests(),
    group=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 16]),
    kv_heads=st.integers(1, 3),
    page_size=st.sampled_from([1, 3, 16, 64]),
    splits=st.sampled_from([0.0, 0.5, 1.0]),
    wide=st.booleans(),
    transposed=st.booleans(),
    scaled=st.sampled_from([None, "tensor", "head"]),
    seed=st.integers(0, 2**31),
)
def test_random_batches(number, lens, group, kv_heads, page_size, splits, wide, transposed, scaled, seed):
    rng = np.random.default_rng(seed)
    library = handmade.load(CAUSAL, **FORMATS[number], **SMALL)
    batch, pages = page_table(rng, *lens, page_size)
    scales = {}
    if scaled:
        size = 1 if scaled == "tensor" else kv_heads
        scales = {"k_scale": rng.uniform(0.5, 2, size), "v_scale": rng.uniform(0.5, 2, size)}
    run_and_compare(
        library, batch, pages, kv_heads, group, Causal(), rng, splits=splits, wide=wide, transposed=transposed, **scales
    )


@quick(15)
@given(
    groups=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    group=st.sampled_from([1, 3, 4]),
    page_size=st.sampled_from([1, 3, 16]),
    splits=st.sampled_from([0.0, 0.7]),
    causal=st.booleans(),
    data=st.data(),
    seed=st.integers(0, 2**31),
)
def test_shared_prefixes(groups, group, page_size, splits, causal, data, seed):
    rng = np.random.default_rng(seed)
    count = sum(groups)
    draw = lambda options, n: data.draw(st.lists(st.sampled_from(options), min_size=n, max_size=n))  # noqa: E731
    prefixes = draw([0, 1, 33, 100], len(groups))
    suffixes = draw([0, 1, 5, 40], count)
    qo_lens = draw([0, 1, 4, 9], count)
    library = handmade.load(CAUSAL if causal else handmade.NO_VARIANT, d=64, **SMALL)
    batch, pages = shared_prefix(rng, prefixes, groups, qo_lens, suffixes, page_size)
    run_and_compare(library, batch, pages, 2, group, Causal() if causal else Plain(), rng, splits=splits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [True, False])
def test_positions_masks_and_head_lists(dtype, causal):
    rng = np.random.default_rng(5)
    library = handmade.load(CAUSAL if causal else handmade.NO_VARIANT, dtype, d=64, **SMALL)
    batch, pages = page_table(rng, [7, 3, 5], [90, 40, 70], 16)
    (level,) = batch.levels
    level.page_pos = [[int(x) for x in rng.integers(0, 100, len(ids))] for ids in level.pages]
    level.mask = [rng.random((7, 90)) < 0.6, None, rng.random((5, 70)) < 0.3]
    level.mask[2][3] = False
    level.key_pos = [None, None, [int(x) for x in rng.integers(0, 90, 70)]]
    batch.q_pos = [int(x) for x in rng.integers(0, 100, 15)]
    other = [[int(p) for p in rng.permutation(ids)] for ids in level.pages]
    level.pages = [tuple(level.pages), tuple(other)]
    run_and_compare(library, batch, pages, 2, 3, Causal() if causal else Plain(), rng, splits=0.5)


def test_a_group_larger_than_a_tile():
    rng = np.random.default_rng(1)
    library = handmade.load(CAUSAL, d=64, **SMALL)
    batch, pages = page_table(rng, [1, 3], [100, 70], 16)
    run_and_compare(library, batch, pages, 1, 64, Causal(), rng)


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_thread_counts_change_no_bit(threads):
    library = handmade.load(CAUSAL, d=64, **SMALL)
    results = []
    for count in (1, threads):
        rng = np.random.default_rng(2)
        batch, pages = page_table(rng, [9, 1, 30], [200, 130, 64], 16)
        results.append(run_and_compare(library, batch, pages, 2, 2, Causal(), rng, threads=count)[3:])
    assert all((a == b).all() for a, b in zip(*results, strict=True))


def test_physical_page_order_changes_no_bit():
    library = handmade.load(CAUSAL, d=64, **SMALL)
    rng = np.random.default_rng(3)
    batch, pages = page_table(rng, [9, 1, 30], [200, 130, 64], 3)
    q, k, v, *_ = run_and_compare(library, batch, pages, 2, 2, Causal(), np.random.default_rng(4))
    order = rng.permutation(pages)
    place = np.argsort(order)
    for level in batch.levels:
        level.pages = [[int(place[p]) for p in ids] for ids in level.pages]
    rng = np.random.default_rng(4)
    plan = handmade.make_plan(library, batch, 2, 2, splits=1.0)
    before = handmade.launch(library, batch, q, k[order], v[order], plan, sm_scale=0.125)
    for level in batch.levels:
        level.pages = [[int(order[p]) for p in ids] for ids in level.pages]
    after = handmade.launch(library, batch, q, k, v, plan, sm_scale=0.125)
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_a_batch_of_nothing():
    library = handmade.load(CAUSAL, d=64, **SMALL)
    rng = np.random.default_rng(0)
    for qo_lens, kv_lens in ([], []), ([0], [5]), ([0, 0], [0, 0]):
        batch, pages = page_table(rng, qo_lens, kv_lens, 4)
        run_and_compare(library, batch, pages, 1, 1, Causal(), rng)
