"""What tests of CUDA kernels have in common, on a device and emulated.

Batches have poison wherever nothing may be read; runs are compared with the float64 oracle.
"""

from __future__ import annotations

from types import SimpleNamespace

import attnloom
import attrs
import numpy as np
import torch
from attnloom import jit, reference
from attnloom.dtypes import torch_dtype

TOLERANCE = {"float32": 4e-3, "float16": 4e-3, "bfloat16": 2.5e-2}
"""Of the output; q, K and V are of half precision in every kernel, and weights are rounded to it."""

HARDER = {"window": 2.0, "e4m3": 2.0, "e5m2": 2.0, "e4m3_rope": 4.0, "sigmoid": 40.0, "qk_norm": 2.0}
"""How much more rounding a spec has: transformed keys are rounded again, sigmoid sums without normalising."""

SPECS = {
    "causal": {"variants": ["causal"]},
    "plain": {"variants": [], "dtype": "float16", "head_dim": 64},
    "soft_cap": {"variants": ["causal", "soft_cap"], "head_dim": 64, "params": {"soft_cap.cap": 5.0}},
    "window": {
        "variants": ["rope", "sliding_window", "sinks"],
        "params": {"sliding_window.left": 20, "sinks.sinks": np.float32([0.5, -1, 2, 0, 1, 1, -2, 3])},
    },
    "alibi": {"variants": ["causal", "alibi"], "head_dim": 64},
    "capped_alibi": {"variants": ["causal", "alibi", "soft_cap"], "head_dim": 64, "params": {"soft_cap.cap": 5.0}},
    "sigmoid": {"variants": ["causal", "sigmoid"], "head_dim": 64},
    "qk_norm": {"variants": ["qk_norm", "rope", "causal"], "head_dim": 64},
    "e4m3": {"variants": ["causal"], "kv_dtype": "float8_e4m3fn"},
    "e5m2": {"variants": ["causal"], "head_dim": 64, "kv_dtype": "float8_e5m2", "out_dtype": "float32"},
    "e4m3_rope": {"variants": ["rope", "causal"], "head_dim": 64, "kv_dtype": "float8_e4m3fn"},
    "d80": {"variants": ["causal"], "head_dim": 80},
    "d96": {"variants": ["causal"], "head_dim": 96, "dtype": "float16"},
    "d112": {"variants": ["causal"], "head_dim": 112},
    "d192": {"variants": ["causal"], "head_dim": 192, "head_dim_v": 128},
    "d256": {"variants": ["causal", "soft_cap"], "head_dim": 256, "params": {"soft_cap.cap": 30.0}},
    "rows32": {"variants": ["causal"], "head_dim": 64, "tile": attnloom.Tile(32, 32, "mma")},
    "rows64": {"variants": ["causal"], "head_dim": 64, "tile": attnloom.Tile(64, 64, "mma")},
}


def make_spec(name, **changes):
    fields = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 128, "dtype": "bfloat16", **SPECS[name], **changes}
    return attnloom.AttentionSpec(**fields)


class Bench:
    """Wrappers by spec, batches on the device, and the check. All kernels are compiled together at first."""

    device = torch.device("cuda", 0)

    def __init__(self):
        self._wrappers = {}
        self._compile()

    def _compile(self):
        from attnloom.kernel import describe
        from attnloom.targets import target_of

        target = target_of(self.device)
        units = [describe(make_spec(name), target)[2] for name in SPECS]
        self.artifacts = dict(zip(SPECS, jit.prepare(units, target.toolchain(False)), strict=True))

    spec = staticmethod(make_spec)

    def wrapper(self, spec, **options):
        key = (spec, tuple(sorted(options.items())))
        if key not in self._wrappers:
            self._wrappers[key] = attnloom.AttentionWrapper(spec, self.device, **options)
        return self._wrappers[key]

    def paged(self, rng, requests, page_size, *, index_dtype=np.int32, spare=3, on_device=False, **needs):
        """A `page_table` index over shuffled pages; the table's padding is an id that must never be used."""
        counts = [-(-kv // page_size) for _, kv in requests]
        pages = rng.permutation(sum(counts) + spare).astype(index_dtype)
        table = np.full((len(requests), max([*counts, 1])), 10**6, index_dtype)
        at = 0
        for row, count in enumerate(counts):
            table[row, :count] = pages[at : at + count]
            at += count
        table = torch.from_numpy(table).to(self.device) if on_device else table
        index = attnloom.storage_format("page_table").build_index(
            [qo for qo, _ in requests], [kv for _, kv in requests], page_size, block_tables=table, **needs
        )
        host = index if not on_device else self._on_host(index)
        return index, host, len(pages)

    def _on_host(self, index):
        levels = [attrs.evolve(level, indices=level.indices.cpu()) for level in index.levels]
        return attrs.evolve(index, levels=levels)

    def tensors(self, rng, spec, index, num_pages, *, layout="plain", magnitude=1.0):
        """`q`, `k`, `v` on the host and `dq`, `kv` on the device; slots that no key lies in are NaN."""
        used = np.unique(index.to_dense().slot)
        used = torch.from_numpy(used[used >= 0])
        shape = (index.num_tokens, spec.num_qo_heads, spec.head_dim)
        q = _filled(rng, shape, torch_dtype(spec.dtype), magnitude)
        k = _cache(rng, spec, used, num_pages, index.page_size, spec.head_dim, magnitude)
        v = _cache(rng, spec, used, num_pages, index.page_size, spec.head_dim_v, 1.0)
        dq = _strided(q.to(self.device), layout)
        kv, kv_layout = _laid_out(k.to(self.device), v.to(self.device), layout)
        return SimpleNamespace(q=q, k=k, v=v, dq=dq, kv=kv, kv_layout=kv_layout)

    def batch(self, rng, spec, requests, page_size=16, *, layout="plain", magnitude=1.0, **how):
        """An index, its twin on the host, and the tensors of it."""
        index, host, pages = self.paged(rng, requests, page_size, **how)
        return index, host, self.tensors(rng, spec, host, pages, layout=layout, magnitude=magnitude)

    def run(self, wrapper, data, rows=None, **options):
        """A run into poisoned outputs over a poisoned workspace."""
        spec = wrapper.spec
        tokens = data.q.shape[0] if rows is None else rows
        out = torch.full((tokens, spec.num_qo_heads, spec.head_dim_v), float("nan"), dtype=torch_dtype(spec.out_dtype))
        out, lse = out.to(self.device), torch.full((tokens, spec.num_qo_heads), float("nan"), device=self.device)
        if wrapper.workspace.buffer is not None:
            wrapper.workspace.buffer.fill_(float("nan"))
        lses = {"lse": lse} if wrapper.kernel.composition.use_softmax else {}
        wrapper.run(data.dq, data.kv, out=out, kv_layout=data.kv_layout, **lses, **options)
        return out, lse if lses else None

    def oracle(self, wrapper, host_index, data, params=None, **scales):
        composition = wrapper.kernel.composition
        bound = composition.resolve({**wrapper.spec.params, **(params or {})})
        scales = {name: value.cpu() if hasattr(value, "cpu") else value for name, value in scales.items()}
        return reference.attention(
            data.q, data.k, data.v, host_index, composition, bound, sm_scale=wrapper.spec.sm_scale, **scales
        )

    def check(self, wrapper, index, host_index, data, *, params=None, scale=1.0, **scales):
        """Plan, run and compare with the oracle; returns what was computed."""
        wrapper.plan(index, params=params)
        out, lse = self.run(wrapper, data, **scales)
        self.compare(wrapper, host_index, data, out, lse, params=params, scale=scale, **scales)
        return out, lse

    def compare(self, wrapper, host_index, data, out, lse, *, params=None, scale=1.0, **scales):
        expected, expected_lse = self.oracle(wrapper, host_index, data, params, **scales)
        bound = TOLERANCE[wrapper.spec.dtype] * scale
        assert_close(out, expected, bound, "out")
        if lse is not None:
            assert_close(lse, expected_lse, max(bound / 4, 2e-3), "lse")


def two_levels(prefix, requests, own=5):
    """An index of two levels, with no single form that a plan could choose by its costs: pages shared, and some own."""
    tables = [[*range(prefix), *range(prefix + own * row, prefix + own * (row + 1))] for row in range(requests)]
    kv_lens = [16 * (prefix + own)] * requests
    index = attnloom.storage_format("radix_tree").build_index([1] * requests, kv_lens, 16, block_tables=tables)
    assert len(index.levels) == 2
    return attrs.evolve(index, single=None), prefix + own * requests


def assert_close(given, expected, bound, name):
    given = given.double().cpu().numpy()
    empty = np.isneginf(expected)
    assert not np.isnan(given).any(), f"{name} holds NaN at {np.argwhere(np.isnan(given))[:4].tolist()}"
    assert np.array_equal(np.isneginf(given), empty), f"{name}: -inf at other places"
    error = np.abs(np.where(empty, 0, given) - np.where(empty, 0, expected)) / np.maximum(1, np.abs(expected))
    error[empty] = 0
    worst = np.unravel_index(error.argmax(), error.shape) if error.size else ()
    assert error.max(initial=0) <= bound, f"{name} is off by {error.max()} at {worst} (bound {bound})"


def _filled(rng, shape, dtype, magnitude):
    return torch.from_numpy(rng.standard_normal(shape, np.float32) * magnitude).to(dtype)


def _cache(rng, spec, used, num_pages, page_size, head_dim, magnitude):
    cache = torch.full((num_pages * page_size, spec.num_kv_heads, head_dim), float("nan"))
    cache[used] = _filled(rng, (len(used), spec.num_kv_heads, head_dim), torch.float32, magnitude)
    return cache.view(num_pages, page_size, spec.num_kv_heads, head_dim).to(torch_dtype(spec.kv_dtype))


def _strided(q, layout):
    if layout == "plain":
        return q
    wide = torch.full((q.shape[1], q.shape[0], q.shape[2] + 8), float("nan"), dtype=q.dtype, device=q.device)
    wide[:, :, : q.shape[2]] = q.transpose(0, 1)
    return wide[:, :, : q.shape[2]].transpose(0, 1)


def _laid_out(k, v, layout):
    """The same cache in another place in memory."""
    if layout == "fused" and k.shape == v.shape:
        return torch.stack([k, v], dim=1), "NHD"
    if layout == "hnd":
        return (k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()), "HND"
    if layout == "layers":
        return (_one_layer(k), _one_layer(v)), "NHD"
    if layout == "padded":
        return (_wider(k), _wider(v)), "NHD"
    return (k, v), "NHD"


def _bytes(cache):
    return cache.view(torch.uint8) if cache.element_size() == 1 else cache


def _one_layer(cache):
    raw = _bytes(cache)
    layers = torch.zeros((raw.shape[0], 3, *raw.shape[1:]), dtype=raw.dtype, device=raw.device)
    layers[:, 1] = raw
    return layers[:, 1].view(cache.dtype)


def _wider(cache):
    raw = _bytes(cache)
    wide = torch.zeros((*raw.shape[:-1], raw.shape[-1] + 16), dtype=raw.dtype, device=raw.device)
    wide[..., : raw.shape[-1]] = raw
    return (
        wide[..., : raw.shape[-1]].view(cache.dtype)
        if raw.dtype == cache.dtype
        else wide.view(cache.dtype)[..., : raw.shape[-1]]
    )
