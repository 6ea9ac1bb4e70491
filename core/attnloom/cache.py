"""The ways a KV-cache may be handed over, seen as two tensors `[pages, page_size, kv_heads, dim]`."""

from __future__ import annotations

from attnloom.errors import RunError


def cache_views(kv, kv_layout: str = "NHD"):
    """The K and the V view of `kv`; nothing is copied.

    Args:
        kv: `(k, v)`, each `[pages, page_size, kv_heads, dim]`, or one tensor `[pages, 2, page_size, kv_heads, dim]`.
        kv_layout: `"NHD"` as above; `"HND"`: `[pages, kv_heads, page_size, dim]`.

    Raises:
        RunError: another number of dimensions, or an unknown layout.
    """
    if isinstance(kv, (tuple, list)):
        if len(kv) != 2:
            raise RunError(f"kv must be (k_cache, v_cache) or one tensor, got a {type(kv).__name__} of {len(kv)}")
        k, v = kv
    elif not hasattr(kv, "dim"):
        raise RunError(f"kv must be (k_cache, v_cache) or one tensor, got {type(kv).__name__}")
    else:
        if kv.dim() != 5 or kv.shape[1] != 2:
            raise RunError(
                f"one tensor for K and V must be [pages, 2, page_size, kv_heads, dim], got {list(kv.shape)}; "
                "pass (k_cache, v_cache) where they are apart"
            )
        k, v = kv[:, 0], kv[:, 1]
    if kv_layout == "NHD":
        return k, v
    if kv_layout != "HND":
        raise RunError(f"kv_layout {kv_layout!r} is neither 'NHD' nor 'HND'")
    for name, cache in (("k", k), ("v", v)):
        if not hasattr(cache, "dim"):
            raise RunError(f"the {name} cache must be a torch tensor, got {type(cache).__name__}")
        if cache.dim() != 4:
            raise RunError(f"the {name} cache must be [pages, kv_heads, page_size, dim], got {list(cache.shape)}")
    return k.transpose(1, 2), v.transpose(1, 2)


def layout_hint(k, v, page_size: int, kv_heads: int, kv_layout: str) -> str:
    """What to add to the refusal of the views `k` and `v`: the other layout, if the cache would fit in that one."""
    planned, swapped = (page_size, kv_heads), (kv_heads, page_size)
    shapes = {tuple(cache.shape[1:3]) for cache in (k, v) if cache.dim() == 4}
    if planned == swapped or shapes != {swapped}:
        return ""
    other, axes = ("NHD", "page_size, kv_heads") if kv_layout == "HND" else ("HND", "kv_heads, page_size")
    return f"; the cache was read as {kv_layout} and fits as [pages, {axes}, dim]: pass kv_layout={other!r}"
