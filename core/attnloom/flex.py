"""`flex_attention` with PyTorch's signature: score and mask functions over plain tensors, forward only."""

from __future__ import annotations

import torch

from attnloom.errors import RunError, UnsupportedError
from attnloom.flex_blocks import Blocks, block_index, pages_of, read_block_mask, whole_index
from attnloom.merge import merge_states
from attnloom.ops import wrapper_for
from attnloom.spec import AttentionSpec
from attnloom.variant import Variant


def flex_attention(
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options=None,
    *,
    return_aux=None,
):
    """What `torch.nn.attention.flex_attention.flex_attention` computes, without gradients.

    Args:
        query: `[batch, heads, queries, head_dim]`; `key`, `value`: `[batch or 1, kv_heads, keys, dim]`.
        score_mod: `(score, b, h, q_idx, kv_idx) -> score`; the score is float32, indices count from 0.
        block_mask: a `BlockMask`. Its lists say which blocks are computed; its `mask_mod` decides in those that are not
            listed as full.
        scale: factor of `q . k` (none: `1 / sqrt(head_dim)`).
        enable_gqa: allow fewer kv heads than query heads.
        return_lse: return `(out, lse)`, lse the natural logarithm, float32 `[batch, heads, queries]`.
        kernel_options: accepted for PyTorch's sake; tiles are chosen by attnloom.
        return_aux: an `AuxRequest(lse=True)`: return `(out, AuxOutput)`.

    Returns:
        `out` `[batch, heads, queries, value's head_dim]`; rows that see no key are 0, their lse `-inf`.

    Raises:
        RunError: shapes that do not fit each other. IndexFormatError: a `block_mask` made for other shapes.
        UnsupportedError: `max_scores`. ModError: a function that cannot be lowered.
    """
    _check(query, key, value, enable_gqa, return_lse, return_aux)
    with_lse = return_lse or (return_aux is not None and return_aux.lse)
    out, lse = _forward(query, key, value, score_mod, block_mask, scale, with_lse)
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, AuxOutput(lse=lse)
    return (out, lse) if return_lse else out


@torch.compiler.disable  # it plans on the host: a compiled graph is left for it and entered again
def _forward(query, key, value, score_mod, block_mask, scale, with_lse: bool):
    """`(out, lse or none)`, shaped as `flex_attention` returns them."""
    batch, heads, q_len, _ = query.shape
    blocks = None if block_mask is None else read_block_mask(block_mask, batch, heads, q_len, key.shape[2])
    mask_mod = None if block_mask is None else block_mask.mask_mod
    if blocks is not None and blocks.heads > 1:
        key, value, score_mod, mask_mod = _fold_heads(query, key, value, score_mod, mask_mod)
        query = query.reshape(batch * heads, 1, q_len, -1)
    out, lse = _attention(query, key, value, score_mod, mask_mod, blocks, batch, scale, with_lse)
    out = out.view(query.shape[0], q_len, query.shape[1], -1).transpose(1, 2).reshape(batch, heads, q_len, -1)
    if with_lse:
        lse = lse.view(query.shape[0], q_len, query.shape[1]).transpose(1, 2).reshape(batch, heads, q_len)
    return out, lse


def _attention(query, key, value, score_mod, mask_mod, blocks: Blocks | None, batch: int, scale, with_lse: bool):
    """`(out [tokens, heads, dim], lse [tokens, heads] or none)`, a token a query of a row of `query`."""
    requests, _, q_len, _ = query.shape
    kv_len = key.shape[2]
    q = query.transpose(1, 2).reshape(requests * q_len, query.shape[1], query.shape[3])
    if blocks is None or kv_len == 0:
        pages = pages_of(key, value, max(kv_len, 1))
        parts = [(whole_index(pages, requests, q_len, kv_len), mask_mod)]
    else:
        pages = pages_of(key, value, blocks.size[1])
        lists = [(blocks.partial, mask_mod), (blocks.full, None)]
        indices = [(one and block_index(one, pages, blocks.size, batch, q_len, kv_len), mod) for one, mod in lists]
        parts = [(index, mod) for index, mod in indices if index is not None]
    if not parts:
        out = q.new_zeros(len(q), q.shape[1], value.shape[3])
        return out, torch.full(out.shape[:2], -torch.inf, device=q.device)
    states = []
    for index, mod in parts:
        spec = AttentionSpec(
            _variants(score_mod, mod),
            num_qo_heads=q.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=q.shape[2],
            head_dim_v=value.shape[3],
            dtype=q.dtype,
            kv_dtype=key.dtype,
            out_dtype="float32" if len(parts) > 1 else q.dtype,
            sm_scale=scale,
        )
        wrapper = wrapper_for(spec, q.device)
        wrapper.plan(index)
        states.append(wrapper.run(q, pages.kv, return_lse=with_lse or len(parts) > 1))
    if len(parts) > 1:
        out, lse = merge_states(states)
        return out.to(q.dtype), lse
    return states[0] if with_lse else (states[0], None)


def _variants(score_mod, mask_mod) -> list[Variant]:
    variants = [Variant.from_mods("score_mod", score_mod=score_mod)] if score_mod is not None else []
    if mask_mod is not None and getattr(mask_mod, "__name__", "") != "noop_mask":
        variants.append(Variant.from_mods("mask_mod", mask_mod=mask_mod))
    return variants


def _fold_heads(query, key, value, score_mod, mask_mod):
    """Keys, values and mods of a batch in which every query head is a row of its own."""
    batch, heads = query.shape[:2]
    key, value = (
        x.expand(batch, *x.shape[1:]).repeat_interleave(heads // x.shape[1], 1).flatten(0, 1).unsqueeze(1)
        for x in (key, value)
    )
    return key, value, *(mod and _folded(mod, kind, heads) for mod, kind in ((score_mod, 1), (mask_mod, 0)))


def _folded(mod, position: int, heads: int):
    """`mod`, given the row for the batch index; the batch index is its argument `position`."""

    def folded(*values):
        row = values[position]
        return mod(*values[:position], row // heads, row % heads, *values[position + 2 :])

    return folded


def _check(query, key, value, enable_gqa: bool, return_lse: bool, return_aux) -> None:
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4:
        raise RunError(f"flex_attention takes [batch, heads, length, dim]; got {shapes}")
    if key.shape[:3] != value.shape[:3] or query.shape[3] != key.shape[3] or key.shape[0] not in (1, query.shape[0]):
        raise RunError(f"batch, kv heads, keys and head dim must agree; got {shapes}")
    if not query.device == key.device == value.device:
        raise RunError(f"query is on {query.device}, key on {key.device}, value on {value.device}")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise RunError(f"query has {query.shape[1]} heads, key {key.shape[1]}: set enable_gqa=True to group them")
    if return_lse and return_aux is not None:
        raise RunError("return_lse and return_aux say the same: give one")
    if return_aux is not None and getattr(return_aux, "max_scores", False):
        raise UnsupportedError("return_aux asks for max_scores, which no kernel keeps; lse is to be had")
