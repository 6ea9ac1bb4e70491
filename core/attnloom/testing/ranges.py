"""What a `kv_range` promises, looked at for every query row, and the sites next to every edge."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np

from attnloom.reference import functors_of, ranges_of
from attnloom.testing.functors import CompiledFunctors


def edge_sites(spec, qo_lens, kv_lens) -> SimpleNamespace:
    """The pairs of a batch next to its edges: first, last and middle queries against every key, on every head."""
    columns = []
    for request, (qo_len, kv_len) in enumerate(zip(qo_lens, kv_lens, strict=True)):
        q_index = np.unique([0, 1, qo_len // 2, qo_len - 2, qo_len - 1])
        q_index = q_index[(q_index >= 0) & (q_index < qo_len)]
        head, q_index, kv_index = (
            axis.reshape(-1) for axis in np.meshgrid(np.arange(spec.num_qo_heads), q_index, np.arange(kv_len))
        )
        columns.append(_sites(spec, request, head, q_index, kv_index, qo_len, kv_len))
    return _joined(columns)


def row_sites(spec, request: int, qo_len: int, kv_len: int) -> SimpleNamespace:
    """Every query row of one request, head by head, as `kv_range` is given it."""
    head, q_index = (axis.reshape(-1) for axis in np.mgrid[0 : spec.num_qo_heads, 0:qo_len])
    sites = _sites(spec, request, head, q_index, np.full(head.shape, -1), qo_len, kv_len)
    sites.kv_pos = np.full(head.shape, -1)
    return sites


def check_ranges(compiled: CompiledFunctors, lens, name: str, *, mask: bool = True) -> None:
    """Hold `kv_range` to its promises, and to the mask. Raises `AssertionError` naming what it breaks."""
    spec = compiled.composition.spec
    references = functors_of(compiled.composition, compiled.params)["kv_range"]
    for request, (qo_len, kv_len) in enumerate(zip(*lens, strict=True)):
        sites = row_sites(spec, request, qo_len, kv_len)
        found = compiled.ranges(sites)
        positions = np.arange(-2, kv_len + 2)
        got = np.array([[any(lo <= pos < hi for lo, hi in row) for pos in positions] for row in found])
        want = np.ones_like(got)
        for kv_range, p in references:
            want &= np.any(
                [(_column(lo) <= positions) & (positions < _column(hi)) for lo, hi in ranges_of(kv_range, p, sites)], 0
            )
        differs = np.argwhere(got != want)
        assert not len(differs), (
            f"kv_range of {name!r} differs from the reference's: head {sites.qo_head[differs[0][0]]}, q_pos "
            f"{sites.q_pos[differs[0][0]]}, kv_pos {positions[differs[0][1]]}: "
            f"{bool(got[tuple(differs[0])])}, expected {bool(want[tuple(differs[0])])}"
        )
        by_head = [found[head * qo_len : (head + 1) * qo_len] for head in range(spec.num_qo_heads)]
        if compiled.facts["range_head_uniform"]:
            assert all(rows == by_head[0] for rows in by_head), (
                f"{name!r} says range_head_uniform, and its kv_range depends on the head: leave the constant out"
            )
        if compiled.facts["range_monotone"]:
            for rows in by_head:
                check_monotone(rows, name)
        if mask:
            check_mask(compiled, sites, want, positions, name)


def check_monotone(rows: list[list[tuple[int, int]]], name: str) -> None:
    """Require that the ends of the hull never decrease from one query to the next."""
    hulls = [(row[0][0], row[-1][1]) for row in rows if row]
    for before, after in itertools.pairwise(hulls):
        assert before[0] <= after[0] and before[1] <= after[1], (
            f"{name!r} says range_monotone, and its kv_range goes from {before} to {after} as q_pos grows: "
            "leave the constant out, or tiles would be skipped that are needed"
        )


def check_mask(compiled: CompiledFunctors, sites, want, positions, name: str) -> None:
    """Where a mask is defined too, the range is a short cut of it: outside of the range, the mask must say no."""
    if not compiled.facts["has_logits_mask"]:
        return
    rows = len(sites.request)
    kv_index = np.clip(positions, 0, None)
    pairs = {field: np.repeat(np.broadcast_to(value, rows), len(positions)) for field, value in vars(sites).items()}
    pairs["kv_index"], pairs["kv_pos"] = np.tile(kv_index, rows), np.tile(positions, rows)
    inside = (pairs["kv_pos"] >= 0) & (pairs["kv_pos"] < pairs["kv_len"])
    pairs = SimpleNamespace(**{field: value[inside] for field, value in pairs.items()})
    kept = compiled.keeps(pairs)
    stray = kept & ~want.reshape(-1)[inside]
    assert not stray.any(), (
        f"{name!r}: logits_mask keeps the key at {pairs.kv_pos[stray][0]} for the query at {pairs.q_pos[stray][0]}, "
        "which kv_range leaves out. Where the two are separate conditions, say range_is_a_condition = True in the suite"
    )


def visible_pairs(composition, bound, index, spec) -> np.ndarray:
    """bool [heads, tokens, keys]: the pairs that the index, the reference's ranges and its masks show."""
    dense = index.to_dense()
    visible = np.broadcast_to(dense.visible, (spec.num_qo_heads, *dense.visible.shape)).copy()
    functors = functors_of(composition, bound)
    qo_lens = np.diff(index.qo_indptr)
    for request, (qo_len, kv_len) in enumerate(zip(qo_lens, index.kv_len, strict=True)):
        tokens = slice(index.qo_indptr[request], index.qo_indptr[request + 1])
        head, q_index, kv_index = np.mgrid[0 : spec.num_qo_heads, 0:qo_len, 0:kv_len]
        pairs = _sites(spec, request, head, q_index, kv_index, int(qo_len), int(kv_len))
        own = visible[:, tokens, :kv_len]
        if not own.size:
            continue
        for mask, p in functors.get("logits_mask", ()):
            own &= mask(p, pairs)
        for kv_range, p in functors.get("kv_range", ()):
            rows = row_sites(spec, request, int(qo_len), int(kv_len))
            inside = [
                (_column(lo).reshape(-1, qo_len, 1) <= pairs.kv_pos)
                & (pairs.kv_pos < _column(hi).reshape(-1, qo_len, 1))
                for lo, hi in _spread(ranges_of(kv_range, p, rows), len(rows.qo_head))
            ]
            own &= np.any(inside, axis=0)
    return visible


def _spread(intervals, rows: int):
    return [tuple(np.broadcast_to(end, rows) for end in pair) for pair in intervals]


def _column(values) -> np.ndarray:
    return np.asarray(values).reshape(-1, 1)


def _sites(spec, request: int, head, q_index, kv_index, qo_len: int, kv_len: int) -> SimpleNamespace:
    return SimpleNamespace(
        request=np.full(head.shape, request),
        qo_head=head,
        kv_head=head // (spec.num_qo_heads // spec.num_kv_heads),
        q_index=q_index,
        kv_index=kv_index,
        q_pos=kv_len - qo_len + q_index,
        kv_pos=kv_index,
        qo_len=np.full(head.shape, qo_len),
        kv_len=np.full(head.shape, kv_len),
    )


def _joined(parts: list[SimpleNamespace]) -> SimpleNamespace:
    return SimpleNamespace(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})
