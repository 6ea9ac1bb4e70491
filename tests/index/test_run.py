"""Every storage format through a kernel, with variants that depend on positions, against the dense oracle."""

import attnloom
import numpy as np
import pytest
import torch
from attnloom import reference
from hypothesis import given, settings
from hypothesis import strategies as st

HEADS, KV_HEADS, DIM = 4, 2, 16


@pytest.fixture(scope="module")
def wrapper():
    pytest.importorskip("attnloom_alibi")
    pytest.importorskip("attnloom_sliding_window")
    spec = attnloom.AttentionSpec(
        ["causal", "sliding_window", "alibi"],
        num_qo_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        dtype="float32",
        params={"sliding_window.left": -1},
        tile=attnloom.Tile(16, 16),
    )
    return attnloom.AttentionWrapper(spec)


def check(wrapper, index, num_pages, window=-1):
    """Runs `index` over a cache of NaN wherever no key lies; returns what came out."""
    index.validate()
    index.check_pages(num_pages)
    generator = torch.Generator().manual_seed(0)
    used = np.unique(index.to_dense().slot)
    used = torch.from_numpy(used[used >= 0])
    k, v = (torch.full((num_pages * index.page_size, KV_HEADS, DIM), float("nan")) for _ in range(2))
    for cache in (k, v):
        cache[used] = torch.randn((len(used), KV_HEADS, DIM), generator=generator)
    k, v = (cache.view(num_pages, index.page_size, KV_HEADS, DIM) for cache in (k, v))
    q = torch.randn((index.num_tokens, HEADS, DIM), generator=generator)
    wrapper.plan(index, params={"sliding_window.left": window})
    out, lse = wrapper.run(q, (k, v), return_lse=True)
    composition = wrapper.kernel.composition
    bound = composition.resolve({**wrapper.spec.params, "sliding_window.left": window})
    expected, expected_lse = reference.attention(q, k, v, index, composition, bound, sm_scale=wrapper.spec.sm_scale)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(lse.numpy(), expected_lse, rtol=1e-4, atol=2e-5)
    return out, lse


WINDOWS = st.sampled_from([-1, 0, 5, 40])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 999), WINDOWS)
def test_shared_prefixes(wrapper, seed, window):
    rng = np.random.default_rng(seed)
    requests, width, page_size = rng.integers(1, 9), 6, int(rng.choice([4, 16]))
    table = rng.permutation(requests * width).reshape(requests, width)
    for request in range(1, requests):
        shared = rng.integers(0, width)
        table[request, :shared] = table[rng.integers(0, request), :shared]
    table = table[rng.permutation(requests)]
    kv = rng.integers(0, width * page_size + 1, requests)
    qo = rng.choice([0, 1, 1, 1, 2, 7], requests)
    index = attnloom.storage_format("radix_tree").build_index(qo, kv, page_size, block_tables=table)
    together, _ = check(wrapper, index, table.size, window)
    if index.single is not None:
        apart, _ = check(wrapper, index.single, table.size, window)
        torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 999), WINDOWS)
def test_speculation_trees(wrapper, seed, window):
    rng = np.random.default_rng(seed)
    sizes, committed = rng.integers(0, 34, 4), rng.integers(0, 30, 4)
    parents = [[int(rng.integers(-1, token)) if token else -1 for token in range(size)] for size in sizes]
    table = rng.permutation(4 * 16).reshape(4, 16)
    index = attnloom.storage_format("tree_attention").build_index(
        sizes, sizes + committed, 4, block_tables=table, parents=parents
    )
    check(wrapper, index, table.size, window)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 999), WINDOWS)
def test_pages_with_masks_and_positions(wrapper, seed, window):
    rng = np.random.default_rng(seed)
    qo, kv = rng.integers(0, 9, 3), rng.integers(0, 40, 3)
    table = rng.permutation(3 * 10).reshape(3, 10)
    needs = {"mask": [rng.random((q, k)) < 0.5 for q, k in zip(qo, kv, strict=True)]} if seed % 2 else {}
    if seed % 3:
        needs |= {"block_pos": 4 * rng.permutation(30).reshape(3, 10), "q_pos": rng.integers(0, 120, qo.sum())}
    index = attnloom.storage_format("page_table").build_index(qo, kv, 4, block_tables=table, **needs)
    check(wrapper, index, table.size, window)


def test_a_page_list_for_each_head(wrapper):
    table = np.random.default_rng(0).permutation(2 * 3 * 4).reshape(2, 3, 4)
    index = attnloom.storage_format("page_table").build_index([1, 2, 0], [13, 9, 4], 4, block_tables=table)
    k, v = torch.randn(2, 24, 4, KV_HEADS, DIM)
    q = torch.randn(3, HEADS, DIM)
    wrapper.plan(index, params={"sliding_window.left": -1})
    out = wrapper.run(q, (k, v))
    composition = wrapper.kernel.composition
    bound = composition.resolve({**wrapper.spec.params})
    expected, _ = reference.attention(q, k, v, index, composition, bound, sm_scale=wrapper.spec.sm_scale)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=2e-5)


def test_dense_and_padded_tensors(wrapper):
    dense = attnloom.storage_format("dense")
    check(wrapper, dense.build_index([3, 1, 0], [9, 4, 2]), 1)
    check(wrapper, dense.build_index([3, 1, 2], [9, 4, 0], 9, kv_starts=[0, 9, 18]), 3, 4)
