"""Batches with poison wherever nothing may be read, and the comparison of a run with the float64 oracle."""

from __future__ import annotations

from types import SimpleNamespace

import attnloom
import numpy as np
import pytest
import torch
from attnloom import reference
from attnloom.dtypes import torch_dtype

TILE = attnloom.Tile(16, 16)
SINKS = np.float32([3, -1, 2, 0])
TOLERANCE = {"float32": 2e-5, "float16": 3e-3, "bfloat16": 2e-2}


class Bench:
    """Wrappers by spec (a kernel is opened once), batches, and the check."""

    def __init__(self):
        self._wrappers = {}

    def wrapper(self, spec, **options):
        key = (spec, tuple(sorted(options.items())))
        if key not in self._wrappers:
            self._wrappers[key] = attnloom.AttentionWrapper(spec, **options)
        return self._wrappers[key]

    def spec(self, variants=("causal",), *, heads=(4, 2), head_dim=40, tile=TILE, **fields):
        fields = {"dtype": "float32", **fields}
        return attnloom.AttentionSpec(
            variants, num_qo_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, tile=tile, **fields
        )

    def windowed(self, left=300, right=-1):
        """Rotation, a window and sinks in one kernel, which most tests share."""
        params = {"sliding_window.left": left, "sliding_window.right": right, "sinks.sinks": SINKS}
        return self.spec(["rope", "sliding_window", "sinks"], head_dim=64, params=params)

    def paged(self, rng, requests, page_size, *, index_dtype=np.int32, spare=3, **needs):
        """A `page_table` index over shuffled pages; the table's padding is an id that must never be used."""
        counts = [-(-kv // page_size) for _, kv in requests]
        pages = rng.permutation(sum(counts) + spare).astype(index_dtype)
        table = np.full((len(requests), max([*counts, 1])), 10**6, index_dtype)
        at = 0
        for row, count in enumerate(counts):
            table[row, :count] = pages[at : at + count]
            at += count
        index = attnloom.storage_format("page_table").build_index(
            [qo for qo, _ in requests], [kv for _, kv in requests], page_size, block_tables=table, **needs
        )
        return index, len(pages)

    def tensors(self, rng, spec, index, num_pages, *, layout="plain", magnitude=1.0):
        """`q`, `kv` and what `run` needs to know of them; slots that no key lies in are NaN."""
        used = np.unique(index.to_dense().slot)
        used = torch.from_numpy(used[used >= 0])
        q = _filled(rng, (index.num_tokens, spec.num_qo_heads, spec.head_dim), torch_dtype(spec.dtype), magnitude)
        k = self._cache(rng, spec, used, num_pages, index.page_size, spec.head_dim, magnitude)
        v = self._cache(rng, spec, used, num_pages, index.page_size, spec.head_dim_v, 1.0)
        return SimpleNamespace(q=_strided(q, layout), k=k, v=v, **_laid_out(k, v, layout))

    def _cache(self, rng, spec, used, num_pages, page_size, head_dim, magnitude):
        dtype = torch_dtype(spec.kv_dtype)
        cache = torch.full((num_pages * page_size, spec.num_kv_heads, head_dim), float("nan"))
        cache[used] = _filled(rng, (len(used), spec.num_kv_heads, head_dim), torch.float32, magnitude)
        return cache.view(num_pages, page_size, spec.num_kv_heads, head_dim).to(dtype)

    def run(self, wrapper, data, **options):
        """A run into poisoned outputs over a poisoned workspace."""
        spec = wrapper.spec
        tokens = data.q.shape[0]
        out = torch.full((tokens, spec.num_qo_heads, spec.head_dim_v), float("nan"), dtype=torch_dtype(spec.out_dtype))
        lse = torch.full((tokens, spec.num_qo_heads), float("nan"))
        if wrapper.workspace.buffer is not None:
            wrapper.workspace.buffer.fill_(float("nan"))
        softmax = wrapper.kernel.composition.use_softmax
        lses = {"lse": lse} if softmax else {}
        wrapper.run(data.q, data.kv, out=out, kv_layout=data.kv_layout, **lses, **options)
        return out, lse if softmax else None

    def oracle(self, wrapper, index, data, params=None, **scales):
        composition = wrapper.kernel.composition
        bound = composition.resolve({**wrapper.spec.params, **(params or {})})
        return reference.attention(
            data.q, data.k, data.v, index, composition, bound, sm_scale=wrapper.spec.sm_scale, **scales
        )

    def check(self, wrapper, index, data, *, params=None, scale=1.0, **scales):
        """Plan, run and compare with the oracle; returns what was computed."""
        wrapper.plan(index, params=params)
        out, lse = self.run(wrapper, data, **scales)
        expected, expected_lse = self.oracle(wrapper, index, data, params, **scales)
        bound = TOLERANCE[wrapper.spec.out_dtype] * scale
        assert_close(out, expected, bound, "out")
        if lse is not None:
            assert_close(lse, expected_lse, max(bound / 4, 2e-5), "lse")
        return out, lse


def assert_close(given, expected, bound, name):
    given = given.double().numpy()
    empty = np.isneginf(expected)
    assert not np.isnan(given).any(), f"{name} holds NaN"
    assert np.array_equal(np.isneginf(given), empty), f"{name}: -inf at other places"
    error = np.abs(np.where(empty, 0, given) - np.where(empty, 0, expected)) / np.maximum(1, np.abs(expected))
    error[empty] = 0
    assert error.max(initial=0) <= bound, f"{name} is off by {error.max()} (bound {bound})"


def _filled(rng, shape, dtype, magnitude):
    return torch.from_numpy(rng.standard_normal(shape, np.float32) * magnitude).to(dtype)


def _strided(q, layout):
    if layout == "plain":
        return q
    wide = torch.full((q.shape[1], q.shape[0], q.shape[2] + 3), float("nan"), dtype=q.dtype)
    wide[:, :, : q.shape[2]] = q.transpose(0, 1)
    return wide[:, :, : q.shape[2]].transpose(0, 1)


def _laid_out(k, v, layout):
    """The same cache in another place in memory."""
    if layout == "fused" and k.shape == v.shape:
        return {"kv": torch.stack([k, v], dim=1), "kv_layout": "NHD"}
    if layout == "hnd":
        return {"kv": (k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()), "kv_layout": "HND"}
    if layout == "layers":
        return {"kv": (_one_layer(k), _one_layer(v)), "kv_layout": "NHD"}
    if layout == "padded":
        return {"kv": (_wider(k), _wider(v)), "kv_layout": "NHD"}
    if layout == "separate":
        return {"kv": [k.transpose(0, 1).contiguous().transpose(0, 1), v], "kv_layout": "NHD"}
    return {"kv": (k, v), "kv_layout": "NHD"}


def _one_layer(cache):
    layers = torch.zeros((cache.shape[0], 3, *cache.shape[1:]), dtype=cache.dtype)
    layers[:, 1] = cache
    return layers[:, 1]


def _wider(cache):
    wide = torch.zeros((*cache.shape[:-1], cache.shape[-1] + 5), dtype=cache.dtype)
    wide[..., : cache.shape[-1]] = cache
    return wide[..., : cache.shape[-1]]


@pytest.fixture(scope="session")
def bench():
    return Bench()


@pytest.fixture
def rng():
    return np.random.default_rng(20)
