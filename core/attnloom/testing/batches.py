"""Batches of every shape that kernels meet, over caches and outputs full of NaN where nothing may be read or left."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from attrs import frozen

GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
"""Query heads a kv head."""

LENGTHS = (
    ((7, 1, 0, 3, 17), (60, 33, 9, 0, 17)),
    ((1,), (1,)),
    ((1, 1, 1), (129, 5, 64)),
    ((), ()),
    ((40, 0), (12, 3)),
    ((2, 33), (90, 35)),
)
"""`(qo_lens, kv_lens)`: ragged, one token, decode, no request, queries without keys, several tiles."""


@frozen
class Batch:
    """Lengths, page size and head counts of one run, and into how many queues its work is split."""

    qo_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    page_size: int
    group: int
    workers: int

    def __str__(self) -> str:
        return (
            f"qo_lens {list(self.qo_lens)}, kv_lens {list(self.kv_lens)}, page_size {self.page_size}, "
            f"group {self.group}, {self.workers} worker(s)"
        )


def generated(rng: np.random.Generator) -> list[Batch]:
    """A batch for every group size: those of `LENGTHS`, then random ones; pages and splits vary with them."""
    batches = []
    for number, group in enumerate(GROUPS):
        qo_lens, kv_lens = LENGTHS[number] if number < len(LENGTHS) else _random(rng)
        batches.append(Batch(qo_lens, kv_lens, (3, 16, 1, 64)[number % 4], group, (3, 1, 8, 2)[number % 4]))
    return batches


def _random(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    requests = int(rng.integers(1, 6))
    qo_lens = rng.choice([0, 1, 2, 15, 16, 17], requests)
    return tuple(map(int, qo_lens)), tuple(map(int, rng.integers(0, 70, requests)))


def tensors(rng: np.random.Generator, spec, index, num_pages: int) -> SimpleNamespace:
    """`q`, `k` and `v` as torch tensors of the spec's dtypes; every cache slot that no key lies in is NaN."""
    import torch

    from attnloom.dtypes import torch_dtype

    used = np.unique(index.to_dense().slot)
    used = torch.from_numpy(used[used >= 0])

    def normal(*shape):
        return torch.from_numpy(rng.standard_normal(shape, np.float32))

    def cache(head_dim):
        slots = torch.full((num_pages * index.page_size, spec.num_kv_heads, head_dim), float("nan"))
        slots[used] = normal(len(used), spec.num_kv_heads, head_dim)
        return slots.view(num_pages, index.page_size, spec.num_kv_heads, head_dim).to(torch_dtype(spec.kv_dtype))

    q = normal(index.num_tokens, spec.num_qo_heads, spec.head_dim).to(torch_dtype(spec.dtype))
    return SimpleNamespace(q=q, k=cache(spec.head_dim), v=cache(spec.head_dim_v))


def run(wrapper, index, data, *, params=None):
    """Plan and run into outputs and a workspace full of NaN. Returns `(out, lse)`, lse none without softmax."""
    import torch

    from attnloom.dtypes import torch_dtype

    spec = wrapper.spec
    wrapper.plan(index, params=params)
    shape = (data.q.shape[0], spec.num_qo_heads)
    out = torch.full((*shape, spec.head_dim_v), float("nan"), dtype=torch_dtype(spec.out_dtype), device=data.q.device)
    lse = torch.full(shape, float("nan"), device=data.q.device)
    if wrapper.workspace.buffer is not None:
        wrapper.workspace.buffer.fill_(float("nan"))
    softmax = wrapper.kernel.composition.use_softmax
    wrapper.run(data.q, (data.k, data.v), out=out, **({"lse": lse} if softmax else {}))
    return out, lse if softmax else None


def check(wrapper, index, data, *, given=None, params=None, tolerance: float, about: str) -> None:
    """Run, and compare with the float64 oracle. Raises `AssertionError` where they differ.

    Args:
        given: `data` where the kernel finds it, if that is not the host.
    """
    from attnloom import reference

    composition = wrapper.kernel.composition
    out, lse = run(wrapper, index, data if given is None else given, params=params)
    bound = composition.resolve({**wrapper.spec.params, **(params or {})})
    expected, expected_lse = reference.attention(
        data.q, data.k, data.v, index, composition, bound, sm_scale=wrapper.spec.sm_scale
    )
    near(out, expected, tolerance, f"{about}: out")
    if lse is not None:
        near(lse, expected_lse, tolerance, f"{about}: lse")


def _first_difference(given: np.ndarray, expected: np.ndarray, where: np.ndarray) -> str:
    at = tuple(np.argwhere(where & ~((given == expected) | (np.isnan(given) & np.isnan(expected))))[0].tolist())
    return (
        f"infinities and NaN are not where the reference has them: at {list(at)} the kernel gives {given[at]:.6g}, the "
        f"reference {expected[at]:.6g}. A position is negative where a request has more query tokens than keys"
    )


def near(given, expected: np.ndarray, tolerance: float, about: str) -> None:
    """Compare with an error relative to the expected magnitude, at least 1; infinities must be in the same places."""
    given = given.detach().double().cpu().numpy()
    assert not np.isnan(given[~np.isnan(expected)]).any(), f"{about}: NaN, read from where no key or value lies"
    finite = np.isfinite(expected)
    same = np.array_equal(given[~finite], expected[~finite], equal_nan=True)
    assert same, f"{about}: {_first_difference(given, expected, ~finite)}"
    error = np.abs(given[finite] - expected[finite]) / np.maximum(1, np.abs(expected[finite]))
    worst = error.max(initial=0.0)
    assert worst <= tolerance, f"{about}: off by {worst:.3g} relative to the reference, the bound is {tolerance:.3g}"
