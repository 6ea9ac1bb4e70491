"""Attention of plain tensors: no cache, no index, no plan to keep."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from attnloom.errors import RunError
from attnloom.index_arrays import as_integers
from attnloom.spec import AttentionSpec
from attnloom.wrapper import AttentionWrapper

_REMEMBERED = 16
_local = threading.local()


def attention(
    q,
    k,
    v,
    variants=("causal",),
    *,
    qo_lens=None,
    kv_lens=None,
    params: dict | None = None,
    sm_scale: float | None = None,
    return_lse: bool = False,
    out_dtype=None,
    tile="auto",
    plugins=None,
):
    """Attention of dense tensors.

    Args:
        q: `[tokens, num_qo_heads, head_dim]`, or `[batch, tokens, num_qo_heads, head_dim]`.
        k, v: `[keys, num_kv_heads, head_dim]` (`head_dim_v` for v), or the same with the batch in front; of one dtype,
            any that a cache beside q may have (`AttentionSpec.kv_dtype`).
        variants: as in `AttentionSpec`; `["causal"]` aligns the last query with the last key.
        qo_lens, kv_lens: with three dimensions, the requests that are packed one after another (none: one request);
            with four, `kv_lens` is how many keys of each batch row count (none: all).
        params, sm_scale, out_dtype, tile, plugins: as in `AttentionSpec`.
        return_lse: return `(out, lse)`.

    Returns:
        `out` shaped as q with v's head dim; with `return_lse` also the natural log-sum-exp, float32, without that dim.

    Raises:
        RunError, IndexFormatError: shapes or lengths that contradict each other. Others as `AttentionWrapper`.
    """
    _check_shapes(q, k, v)
    spec = AttentionSpec(
        variants=variants,
        num_qo_heads=q.shape[-2],
        num_kv_heads=k.shape[-2],
        head_dim=q.shape[-1],
        head_dim_v=v.shape[-1],
        dtype=q.dtype,
        kv_dtype=k.dtype,
        out_dtype=out_dtype,
        sm_scale=sm_scale,
        params=params or {},
        tile=tile,
        plugins=plugins,
    )
    wrapper = wrapper_for(spec, q.device)
    if q.dim() == 3:
        index, kv = _ragged(q, k, v, qo_lens, kv_lens)
    else:
        index, kv = _padded(q, k, v, qo_lens, kv_lens)
    wrapper.plan(index)
    result = wrapper.run(q.reshape(-1, *q.shape[-2:]), kv, return_lse=return_lse)
    if return_lse:
        out, lse = result
        return out.view(*q.shape[:-1], v.shape[-1]), lse.view(q.shape[:-1])
    return result.view(*q.shape[:-1], v.shape[-1])


def _check_shapes(q, k, v) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not hasattr(tensor, "data_ptr"):
            raise RunError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
    if q.dim() not in (3, 4) or k.dim() != q.dim() or v.dim() != q.dim():
        raise RunError(
            "q, k and v must all be [tokens, heads, dim] or all [batch, tokens, heads, dim]; "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    if k.shape[:-1] != v.shape[:-1]:
        raise RunError(f"k has shape {list(k.shape)}, v {list(v.shape)}: all but the last dimension must be equal")
    if q.shape[-1] != k.shape[-1]:
        raise RunError(f"q has head dim {q.shape[-1]}, k {k.shape[-1]}")
    if q.dim() == 4 and q.shape[0] != k.shape[0]:
        raise RunError(f"q has a batch of {q.shape[0]}, k of {k.shape[0]}")
    if not q.device == k.device == v.device:
        raise RunError(f"q is on {q.device}, k on {k.device}, v on {v.device}")
    if k.dtype != v.dtype:
        raise RunError(f"k is {k.dtype}, v is {v.dtype}")


def _ragged(q, k, v, qo_lens, kv_lens):
    from attnloom.dense import build_index

    qo_lens = np.array([q.shape[0]]) if qo_lens is None else qo_lens
    kv_lens = np.array([k.shape[0]]) if kv_lens is None else kv_lens
    index = build_index(qo_lens, kv_lens, max(k.shape[0], 1))
    _check_total("qo_lens", int(index.qo_indptr[-1]), "q", q.shape[0])
    _check_total("kv_lens", int(index.kv_len.sum()), "k", k.shape[0])
    return index, (_one_page(k), _one_page(v))


def _padded(q, k, v, qo_lens, kv_lens):
    from attnloom.dense import build_index

    if qo_lens is not None:
        raise RunError("qo_lens takes packed tensors [tokens, heads, dim]; with a batch every row has all its queries")
    batch, length = k.shape[:2]
    kv_lens = np.full(batch, length) if kv_lens is None else as_integers(kv_lens, "kv_lens")
    if len(kv_lens) and int(kv_lens.max()) > length:
        raise RunError(f"kv_lens holds {int(kv_lens.max())}, k has {length} keys a batch row")
    starts = np.arange(batch, dtype=np.int64) * length
    index = build_index(np.full(batch, q.shape[1]), kv_lens, max(length, 1), kv_starts=starts)
    return index, (k, v) if length else (k.new_zeros(batch, 1, *k.shape[2:]), v.new_zeros(batch, 1, *v.shape[2:]))


def _one_page(rows):
    return rows.unsqueeze(0) if len(rows) else rows.new_zeros(1, 1, *rows.shape[1:])


def _check_total(name: str, total: int, tensor: str, rows: int) -> None:
    if total != rows:
        raise RunError(f"{name} add up to {total}, {tensor} has {rows} rows")


def wrapper_for(spec: AttentionSpec, device) -> AttentionWrapper:
    """This thread's wrapper of `spec`: remembered, or made now."""
    wrappers = getattr(_local, "wrappers", None)
    if wrappers is None:
        wrappers = _local.wrappers = OrderedDict()
    key = (spec, spec.read_now(), device.type)
    if (known := wrappers.get(key)) is not None:
        wrappers.move_to_end(key)
        return known
    wrapper = wrappers[key] = AttentionWrapper(spec, device)
    if len(wrappers) > _REMEMBERED:
        wrappers.popitem(last=False)
    return wrapper
