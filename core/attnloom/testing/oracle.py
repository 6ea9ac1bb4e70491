"""Attention pair by pair: the float64 reference functors called on one site at a time, and nothing vectorised.

What `attnloom.reference` makes of a reference class must be what these loops make of it; where the two differ, the
class does not broadcast, changes what it is given, or follows the shape of its arguments instead of their values.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np

from attnloom.reference import functors_of, ranges_of


def attention(q, k, v, index, composition, bound, *, sm_scale: float) -> tuple[np.ndarray, np.ndarray]:
    """`(O, LSE)` of a small batch, as `attnloom.reference.attention` returns them."""
    chain = functors_of(composition, bound)
    dense = index.to_dense()
    q, k, v = (np.asarray(x.detach().double().numpy()) for x in (q, k, v))
    out = np.zeros((*q.shape[:2], v.shape[3]))
    lse = np.full(q.shape[:2], -np.inf)
    group = q.shape[1] // k.shape[2]
    for token, request in enumerate(index.token_request):
        begin, end = int(index.qo_indptr[request]), int(index.qo_indptr[request + 1])
        fixed = {
            "request": int(request),
            "q_index": token - begin,
            "q_pos": int(dense.q_pos[token]),
            "qo_len": end - begin,
            "kv_len": int(index.kv_len[request]),
        }
        keys = [j for j in range(fixed["kv_len"]) if dense.visible[token, j]]
        for head in range(q.shape[1]):
            site = {**fixed, "qo_head": head, "kv_head": head // group}
            places = [divmod(int(dense.slot[token, j]), index.page_size) for j in keys]
            rows = [(k[page, slot, head // group], v[page, slot, head // group]) for page, slot in places]
            positions = [int(dense.kv_pos[token, j]) for j in keys]
            one = _row(
                chain, composition.use_softmax, q[token, head], rows, keys, positions, site, sm_scale, v.shape[3]
            )
            out[token, head], lse[token, head] = one
    return out, lse


def _row(chain, use_softmax, q, rows, keys, positions, fixed, sm_scale, width) -> tuple[np.ndarray, float]:
    row_site = _site(fixed, kv_index=-1, kv_pos=-1)
    q = _rows(chain, "query_transform", q, row_site)
    ranges = [ranges_of(kv_range, p, row_site) for kv_range, p in chain.get("kv_range", ())]
    logits, values = [], []
    for (key, value), j, pos in zip(rows, keys, positions, strict=True):
        site = _site(fixed, kv_index=j, kv_pos=pos)
        inside = all(any(_first(lo) <= pos < _first(hi) for lo, hi in one) for one in ranges)
        if not inside or not all(bool(_first(mask(p, site))) for mask, p in chain.get("logits_mask", ())):
            continue
        key_site = _site({**fixed, "qo_head": -1}, kv_index=j, kv_pos=pos, q_index=-1, q_pos=0)
        x = np.array([sm_scale * (q @ _rows(chain, "key_transform", key, key_site))])
        for transform, p in chain.get("logits_transform", ()):
            x = np.asarray(transform(p, x, site), np.float64)
        logits.append(_first(x))
        values.append(_rows(chain, "value_transform", value, key_site))
    total = np.zeros(width)
    if not use_softmax:
        total, log_sum = sum((w * value for w, value in zip(logits, values, strict=True)), total), math.nan
    else:
        inits = [row_init(p, row_site) for row_init, p in chain.get("row_init", ())]
        terms = [*logits, *(_first(m) + (math.log(_first(d)) if _first(d) > 0 else -math.inf) for m, d in inits)]
        top = max(terms, default=-math.inf)
        log_sum = top + math.log(sum(math.exp(x - top) for x in terms)) if top > -math.inf else -math.inf
        for x, value in zip(logits, values, strict=True):
            total = total + (math.exp(x - log_sum) if x > -math.inf else 0.0) * value
    return _rows(chain, "output_transform", total, row_site), log_sum


def _rows(chain, functor: str, row: np.ndarray, site) -> np.ndarray:
    for transform, p in chain.get(functor, ()):
        row = np.asarray(transform(p, row[None].copy(), site), np.float64)[0]
    return row


def _site(fixed: dict, **fields) -> SimpleNamespace:
    return SimpleNamespace(**{name: np.array([value]) for name, value in {**fixed, **fields}.items()})


def _first(x) -> float:
    return np.asarray(x).reshape(-1)[0].item()
