"""Attention over padded batches, for `model(...)` and `model.generate` with any transformers cache."""

from __future__ import annotations

import threading

import torch
from attrs import define

from attnloom.errors import UnsupportedError
from attnloom.integrations.cache import Pages, dense_pages
from attnloom.integrations.layers import LayerKind, describe_layer
from attnloom.integrations.masks import PaddedMask, as_padded_mask
from attnloom.wrapper import AttentionWrapper

_local = threading.local()


@define(eq=False)
class _Planned:
    """A wrapper and what its plan in force was made of."""

    wrapper: AttentionWrapper
    mask: PaddedMask | None = None
    geometry: tuple[int, int, int] | None = None

    def plan(self, mask: PaddedMask, pages: Pages, params: dict | None) -> None:
        """Plan unless the last plan was for the same mask and pages (the layer before)."""
        geometry = (pages.page_size, *pages.block_table.shape)
        if self.mask is mask and self.geometry == geometry:
            return
        self.wrapper.plan(mask.index(pages.page_size, pages.block_table), params=params)
        self.mask, self.geometry = mask, geometry


def padded_attention(
    module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask=None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    attnloom_pages: Pages | None = None,
    attnloom_override=None,
    **keywords,
):
    """The attention function that transformers calls as `attn_implementation="attnloom"`.

    Args:
        query: `[batch, heads, queries, head_dim]`; key, value: `[batch, kv_heads, keys, head_dim]`, the cache included
            unless `attnloom_pages` (put there by `PagedCache`) holds it.
        attention_mask: a `PaddedMask`, a 4-d tensor, or none.

    Returns:
        `([batch, queries, heads, head_dim_v], None)`. Rows that see nothing (padding) are 0.

    Raises:
        UnsupportedError: for dropout, or a keyword that no variant was told of.
    """
    if dropout:
        raise UnsupportedError(f"attention dropout {dropout} is not supported; call model.eval()")
    batch, heads, q_length, _ = query.shape
    kv_length = attention_mask.kv_length if isinstance(attention_mask, PaddedMask) else key.shape[2]
    pages = dense_pages(key, value) if attnloom_pages is None else attnloom_pages
    causal = keywords.get("is_causal")
    mask = as_padded_mask(
        attention_mask,
        batch,
        q_length,
        kv_length,
        causal=getattr(module, "is_causal", True) if causal is None else causal,
        window=keywords.get("sliding_window"),
    )
    kind, params = describe_layer(
        query, key, value, scaling=scaling, keywords=keywords, positions=mask.positions, override=attnloom_override
    )
    planned = _planned(kind, query.device.type)
    planned.plan(mask, pages, params)
    rows = query.transpose(1, 2).reshape(batch * q_length, heads, -1)
    out = planned.wrapper.run(rows, (pages.k, pages.v), params=params)
    return out.view(batch, q_length, heads, -1), None


def _planned(kind: LayerKind, device: str) -> _Planned:
    """The wrapper of a layer kind; a wrapper belongs to one thread."""
    wrappers = _local.__dict__.setdefault("wrappers", {})
    if (kind, device) not in wrappers:
        wrappers[kind, device] = _Planned(AttentionWrapper(kind.spec(), device=device))
    return wrappers[kind, device]
