"""Writing new keys and values into the pages of a cache."""

from __future__ import annotations

import numpy as np
import torch

from attnloom.cache import cache_views, layout_hint
from attnloom.errors import IndexFormatError, RunError, UnsupportedError
from attnloom.index import ComposedIndex, Level


def append_kv(k, v, kv_cache, where, *, kv_layout: str = "NHD", k_scale=None, v_scale=None) -> None:
    """Write the rows of `k` and `v` into the cache, in place.

    Args:
        k, v: `[tokens, kv_heads, head_dim]` (`head_dim_v`), any float dtype and strides; each is converted to the
            cache's dtype, as models write float32 rows to 16-bit caches.
        kv_cache: `(k_cache, v_cache)`, each `[pages, page_size, kv_heads, head_dim]`, or one tensor
            `[pages, 2, page_size, kv_heads, head_dim]`; any strides, on CUDA with the last one 1.
        where: the `ComposedIndex` of the batch whose query tokens these are (their slots are `token_slots(index)`), or
            an integer slot a token, `page * page_size + offset`; a negative slot skips its token. Slots on a CUDA
            device are not waited for: one past the end stops the device with an error that names it.
        kv_layout: `"NHD"`, or `"HND"` where heads come before the slots of a page.
        k_scale, v_scale: what the cache's values are multiplied with when read: a number, or float32 `[1]` or
            `[kv_heads]`. Rows are divided by it. What is beyond an fp8 cache is clamped to what it can hold; beyond
            float16 it becomes infinite, as everywhere in torch.

    Raises:
        RunError: shapes, dtypes or scales that do not fit, with both values.
        IndexFormatError: a slot past the end of the cache, or an index with a page id below 0.
        UnsupportedError: an index with a page list a kv head, or on CUDA a dtype that no kernel converts.
            Nothing has been written then.
    """
    k_cache, v_cache = cache_views(kv_cache, kv_layout)
    for name, rows, cache in (("k", k, k_cache), ("v", v, v_cache)):
        _check_tensors(name, rows, cache)
    if k_cache.shape[:2] != v_cache.shape[:2]:
        raise RunError(
            f"the k cache has shape {list(k_cache.shape)}, the v cache {list(v_cache.shape)}: "
            "they must have the same pages and page size"
        )
    page_size = k_cache.shape[1]
    if isinstance(where, ComposedIndex):
        if where.page_size != page_size:
            heads = k.shape[1] if k.dim() == 3 else 0
            hint = layout_hint(k_cache, v_cache, where.page_size, heads, kv_layout)
            raise RunError(f"the index has pages of {where.page_size} slots, the cache of {page_size}{hint}")
        where = token_slots(where)
    if k_scale is None and v_scale is None and _copy_rows(k, v, k_cache, v_cache, where):
        return
    slots = _slots(where, k_cache.device)
    _check_rows("k", k, k_cache, slots)
    _check_rows("v", v, v_cache, slots)
    k_scale, v_scale = _divisor("k_scale", k_scale, k_cache), _divisor("v_scale", v_scale, v_cache)
    if len(slots) == 0:
        return
    capacity = k_cache.shape[0] * page_size
    if slots.is_cuda:
        if not (isinstance(where, torch.Tensor) and where.is_cuda):
            _check_end(int(np.max(np.asarray(where))), capacity, k_cache)
        return _append_on_device((k, k_cache, k_scale), (v, v_cache, v_scale), slots)
    slots = slots.long()
    _check_end(int(slots.max()), capacity, k_cache)
    if int(slots.min()) < 0:
        kept = (slots >= 0).nonzero().squeeze(1)
        slots, k, v = slots[kept], k[kept], v[kept]
    pages, offsets = slots // page_size, slots % page_size
    _scatter(k_cache, pages, offsets, k, k_scale)
    _scatter(v_cache, pages, offsets, v, v_scale)


def _check_end(last: int, capacity: int, cache) -> None:
    if last >= capacity:
        raise IndexFormatError(
            f"slot {last} is past the end of a cache of {capacity} slots ({cache.shape[0]} pages of {cache.shape[1]})"
        )


def _append_on_device(k, v, slots) -> None:
    """Without a look at the slots, which would wait for the device."""
    from attnloom.engines.append import append

    append((k, v), (slots if slots.dtype in (torch.int32, torch.int64) else slots.long()).contiguous())


def _copy_rows(k, v, k_cache, v_cache, slots) -> bool:
    """Write rows that need neither a check that fails nor a conversion; false, and nothing written, for any other."""
    if type(slots) is not np.ndarray:
        slots = slots.numpy() if isinstance(slots, torch.Tensor) and slots.is_cpu else None
    if slots is None or slots.dtype != np.int64 or slots.ndim != 1 or not slots.size:
        return False
    flat_k, flat_v = _flat(k, k_cache, slots.size), _flat(v, v_cache, slots.size)
    if flat_k is None or flat_v is None or slots.view(np.uint64).max() >= min(flat_k.shape[0], flat_v.shape[0]):
        return False
    places = torch.from_numpy(slots)
    flat_k.index_copy_(0, places, k)
    flat_v.index_copy_(0, places, v)
    return True


def _flat(rows, cache, tokens: int):
    """The cache as `[slots, kv_heads, dim]` where it is one in memory and the rows fit it as they are; else none."""
    pages, page_size, heads, dim = cache.shape
    fits = rows.dtype == cache.dtype and rows.shape == (tokens, heads, dim) and rows.is_cpu and cache.is_cpu
    if not fits or cache.element_size() == 1 or cache.stride(0) != page_size * cache.stride(1):
        return None
    return cache.view(pages * page_size, heads, dim)


def token_slots(index: ComposedIndex) -> np.ndarray:
    """int64[T]: the cache slot (`page * page_size + offset`) that belongs to each query token of `index`.

    A batch's `qo_len` query tokens are the last `qo_len` keys of their request; a token with no key of its own (more
    queries than keys) has slot -1.

    Raises:
        UnsupportedError: an index with a page list a kv head, so that a token has a slot a head.
        IndexFormatError: a page id below 0.
    """
    view = index.single if index.single is not None else index
    tokens = np.arange(view.num_tokens, dtype=np.int64)
    request = np.asarray(view.token_request, dtype=np.int64)
    qo_end = np.asarray(view.qo_indptr, dtype=np.int64)[request + 1]
    kv_index = np.asarray(view.kv_len, dtype=np.int64)[request] - (qo_end - tokens)
    slots = np.full(view.num_tokens, -1, dtype=np.int64)
    for level in view.levels:
        _fill_slots(slots, level, view.page_size, kv_index)
    return slots


def _fill_slots(slots: np.ndarray, level: Level, page_size: int, kv_index: np.ndarray) -> None:
    if level.per_head:
        raise UnsupportedError("an index with a page list a kv head gives a token one slot a head; pass slots instead")
    row_indptr = np.asarray(level.row_indptr, dtype=np.int64)
    rows = np.repeat(np.arange(level.num_rows), np.diff(row_indptr))
    tokens = np.arange(row_indptr[0], row_indptr[-1]) if level.row_tokens is None else np.asarray(level.row_tokens)
    ordinal = kv_index[tokens] - np.asarray(level.kv_start, dtype=np.int64)[rows]
    held = (kv_index[tokens] >= 0) & (ordinal >= 0) & (ordinal < np.asarray(level.kv_len)[rows])
    tokens, rows, ordinal = tokens[held], rows[held], ordinal[held]
    place = np.asarray(level.kv_offset, dtype=np.int64)[rows] + ordinal
    entry = np.asarray(level.page_begin)[rows] + place // page_size
    pages = _gather(level.indices, entry)
    if pages.size and pages.min() < 0:
        at = int(pages.argmin())
        raise IndexFormatError(f"the keys of query token {tokens[at]} lie in page {pages[at]}, expected at least 0")
    slots[tokens] = pages * page_size + place % page_size


def _gather(indices, entry: np.ndarray) -> np.ndarray:
    if isinstance(indices, torch.Tensor):
        return indices.reshape(-1)[torch.from_numpy(entry).to(indices.device)].cpu().numpy().astype(np.int64)
    return np.asarray(indices).reshape(-1)[entry].astype(np.int64)


def _check_tensors(name: str, rows, cache) -> None:
    for what, tensor in ((name, rows), (f"the {name} cache", cache)):
        if not isinstance(tensor, torch.Tensor):
            raise RunError(f"{what} must be a torch tensor, got {type(tensor).__name__}")
    if cache.dim() != 4:
        raise RunError(f"the {name} cache must be [pages, page_size, kv_heads, dim], got {list(cache.shape)}")
    if not rows.dtype.is_floating_point:
        raise RunError(f"{name} is {rows.dtype}, keys and values are floats")
    if rows.requires_grad and torch.is_grad_enabled():
        raise RunError(f"{name} requires a gradient, which a cache does not carry: append under torch.no_grad()")


def _slots(where, device):
    try:
        return torch.as_tensor(where if len(where) else np.zeros(0, np.int64), device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        shown = repr(where)[:80]
        raise IndexFormatError(f"where is a ComposedIndex or an integer slot a token, got {shown}: {error}") from error


def _check_rows(name: str, rows, cache, slots) -> None:
    expected = (len(slots), *cache.shape[2:])
    if tuple(rows.shape) != expected:
        raise RunError(
            f"{name} has shape {list(rows.shape)}; {len(slots)} slots in a cache of {list(cache.shape)} "
            f"take [tokens, kv_heads, dim] = {list(expected)}"
        )
    if rows.device != cache.device:
        raise RunError(f"{name} is on {rows.device}, the cache on {cache.device}")
    if slots.dtype.is_floating_point or slots.dtype == torch.bool or slots.dim() != 1:
        raise IndexFormatError(f"slots are integers [tokens], got {slots.dtype} {list(slots.shape)}")


def _scatter(cache, pages, offsets, rows, divisor) -> None:
    if divisor is not None:
        rows = rows.float() / divisor
    if cache.element_size() == 1:
        bound = torch.finfo(cache.dtype).max
        rows = rows.float().clamp(-bound, bound).to(cache.dtype)
        cache, rows = cache.view(torch.uint8), rows.view(torch.uint8)
    cache[pages, offsets] = rows.to(cache.dtype)


def _divisor(name: str, scale, cache):
    if scale is None:
        return None
    try:
        scale = torch.as_tensor(scale, dtype=torch.float32, device=cache.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RunError(f"{name} must be a number or float32 [kv_heads], got {scale!r}: {error}") from error
    if scale.numel() not in (1, cache.shape[2]):
        raise RunError(f"{name} has {scale.numel()} values; it takes 1, or one for each of {cache.shape[2]} kv heads")
    if not scale.is_cuda and not bool((scale.isfinite() & (scale != 0)).all()):
        raise RunError(f"{name} must be finite and not 0, got {scale.tolist()}")
    return scale.reshape(-1, 1)
