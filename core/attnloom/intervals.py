"""Which positions the ranges of a chain leave to a sample request, variant by variant, by their float64 references."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from attnloom.reference import functors_of, ranges_of, reference_of


def sample_intervals(composition, bound, num_qo_heads: int, qo_len: int, kv_len: int) -> dict[str, Any]:
    """The intervals of `kv_pos` that the first, the middle and the last query token of one request see.

    Args:
        composition: a `Composition`; `bound` its parameters.
        qo_len, kv_len: of the request, whose last query token sits at position `kv_len - 1`.

    Returns:
        Plain data: `qo_len`, `kv_len` and `rows`; of each row `q_index`, `q_pos`, `heads`, for each variant with a
        `kv_range` its intervals in `variants`, and what they have in common in `visible`. Query heads that see the same
        share a row. Intervals are half-open and cut to `[0, kv_len)`.
    """
    rows = []
    for q_index in sorted({0, qo_len // 2, qo_len - 1} & set(range(qo_len))):
        by_sight: dict[tuple, dict] = {}
        for head in range(num_qo_heads):
            site = _row(q_index, qo_len, kv_len, head, num_qo_heads)
            seen = {
                member.alias: ranges
                for member in composition.members
                if (ranges := _ranges(member, bound, site, kv_len)) is not None
            }
            common = [(0, kv_len)] if kv_len else []
            for ranges in seen.values():
                common = intersect(common, ranges)
            row = by_sight.setdefault(
                (tuple(sorted((alias, tuple(ranges)) for alias, ranges in seen.items()))),
                {"q_index": q_index, "q_pos": int(site.q_pos), "heads": [], "variants": seen, "visible": common},
            )
            row["heads"].append(head)
        rows += by_sight.values()
    return {"qo_len": qo_len, "kv_len": kv_len, "rows": rows}


def _row(q_index: int, qo_len: int, kv_len: int, head: int, num_qo_heads: int) -> SimpleNamespace:
    fields = {
        "request": 0, "qo_head": head, "kv_head": -1, "q_index": q_index, "kv_index": -1,
        "q_pos": kv_len - qo_len + q_index, "kv_pos": -1, "qo_len": qo_len, "kv_len": kv_len,
    }  # fmt: skip
    return SimpleNamespace(**{name: np.array(value, np.int64) for name, value in fields.items()})


def _ranges(member, bound, site, kv_len: int) -> list[tuple[int, int]] | None:
    if member.variant.text is not None and "kv_range" in member.variant.functors:
        return reference_of(member.variant).visible(bound.namespace(member.alias), site, kv_len)
    functors = functors_of(SimpleNamespace(members=[member]), bound).get("kv_range")
    if not functors:
        return None
    kv_range, p = functors[0]
    cut = [(max(int(lo), 0), min(int(hi), kv_len)) for lo, hi in ranges_of(kv_range, p, site)]
    return [pair for pair in sorted(cut) if pair[0] < pair[1]]


def intersect(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What two sorted lists of half-open intervals have in common."""
    pairs = [(max(a, c), min(b, d)) for a, b in left for c, d in right]
    return sorted(pair for pair in pairs if pair[0] < pair[1])
