"""Masks of padded batches, as intervals where they are intervals and as bits where they are not.

transformers describes a mask by a function of indices. What attnloom wants to know is whether it is causal, which
window it has and where the padding ends; the answer is verified against the mask itself, so an unusual mask is never
mistaken for a usual one: it is passed to the kernel bit by bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from attrs import field, frozen

from attnloom.errors import UnsupportedError
from attnloom.index import ComposedIndex, Level
from attnloom.integrations.layers import Positions


@frozen(kw_only=True, eq=False)
class PaddedMask:
    """Which keys each query of a padded batch sees.

    Attributes:
        batch, q_length, kv_length: the batch's shape.
        first_q_pos: position of the first query, on the scale on which the first key has position 0.
        kv_begin, kv_end: int64[batch], the keys of each request that are no padding.
        positions: causality and window, where the mask is an interval of those keys.
        visible: bool[batch, q_length, kv_length] where it is not, else none.
    """

    batch: int
    q_length: int
    kv_length: int
    first_q_pos: int
    kv_begin: np.ndarray
    kv_end: np.ndarray
    positions: Positions
    visible: np.ndarray | None = field(default=None)

    def index(self, page_size: int, block_table: np.ndarray) -> ComposedIndex:
        """The index of the batch over pages; `block_table` is i32[batch, pages], in order of position."""
        tokens = self.batch * self.q_length
        row_indptr = np.arange(self.batch + 1, dtype=np.int32) * self.q_length
        kv_len = (self.kv_end - self.kv_begin).astype(np.int32)
        row = np.arange(self.batch, dtype=np.int64)
        mask = {}
        if self.visible is not None:
            mask = dict(zip(("mask_bits", "mask_begin"), _pack(self.visible), strict=True))
        level = Level(
            row_indptr=row_indptr,
            kv_len=kv_len,
            kv_start=np.zeros(self.batch, np.int32),
            kv_offset=(self.kv_begin % page_size).astype(np.int32),
            page_begin=row * block_table.shape[1] + self.kv_begin // page_size,
            indices=np.ascontiguousarray(block_table, dtype=np.int32).reshape(-1),
            **mask,
        )
        q_pos = self.first_q_pos + np.arange(self.q_length)[None, :] - self.kv_begin[:, None]
        return ComposedIndex(
            page_size=page_size,
            qo_indptr=row_indptr,
            kv_len=kv_len,
            token_request=np.arange(tokens, dtype=np.int32) // max(self.q_length, 1),
            q_pos=q_pos.astype(np.int32).reshape(-1),
            levels=(level,),
        )


def padded_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset=0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device="cpu",
    **_options,
) -> PaddedMask:
    """The mask function that transformers calls for `attn_implementation="attnloom"`, once a forward and mask kind."""
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    q_offset = int(q_offset)
    padding = None if attention_mask is None else _padding(attention_mask, kv_length, kv_offset)
    guess = {
        "batch": int(batch_size),
        "q_length": int(q_length),
        "kv_length": int(kv_length),
        "first_q_pos": q_offset - int(kv_offset),
    }
    begin, end = _interval(padding, guess["batch"], guess["kv_length"])
    window = None if local_size is None else int(local_size)
    mask = PaddedMask(**guess, kv_begin=begin, kv_end=end, positions=Positions(causal=True, window=window))
    plain = mask_function is None or mask_function is causal_mask_function
    if plain and window is None and not use_vmap and _is_interval(padding, begin, end):
        return mask
    visible = sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=causal_mask_function if mask_function is None else mask_function,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        use_vmap=use_vmap,
        device=device,
    )
    visible = visible.expand(batch_size, 1, q_length, kv_length)[:, 0].cpu().numpy()
    if np.array_equal(visible, _expected(mask)):
        return mask
    return _bitwise(visible, guess["first_q_pos"])


def as_padded_mask(given, batch: int, q_length: int, kv_length: int, *, causal: bool, window: int | None) -> PaddedMask:
    """What the attention function was given as a mask, whatever it is, as a `PaddedMask`.

    Args:
        given: a `PaddedMask`; a 4-d boolean or additive tensor; or none, where `causal` and `window` decide.

    Raises:
        UnsupportedError: for an additive mask that is more than a mask.
    """
    if isinstance(given, PaddedMask):
        return given
    if given is None:
        begin, end = _interval(None, batch, kv_length)
        positions = Positions(causal=causal, window=window)
        shape = {"batch": batch, "q_length": q_length, "kv_length": kv_length, "first_q_pos": kv_length - q_length}
        return PaddedMask(**shape, kv_begin=begin, kv_end=end, positions=positions)
    if not isinstance(given, torch.Tensor) or given.dim() != 4 or given.shape[1] != 1:
        raise UnsupportedError(f"an attention mask is [batch, 1, queries, keys], got {getattr(given, 'shape', given)}")
    visible = given if given.dtype == torch.bool else _from_additive(given)
    visible = visible[..., :kv_length].expand(batch, 1, q_length, kv_length)[:, 0].cpu().numpy()
    return _bitwise(visible, kv_length - q_length)


def _from_additive(mask: torch.Tensor) -> torch.Tensor:
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if not bool(((mask == 0) | hidden).all()):
        raise UnsupportedError("an additive attention mask with values other than 0 and the dtype's minimum is a bias")
    return ~hidden


def _padding(attention_mask: torch.Tensor, kv_length: int, kv_offset: int) -> np.ndarray:
    """bool[batch, kv_length]: true where a key is no padding; keys past the given mask are padding."""
    seen = attention_mask.bool().cpu().numpy()[:, kv_offset : kv_offset + kv_length]
    return np.pad(seen, ((0, 0), (0, kv_length - seen.shape[1])))


def _interval(padding: np.ndarray | None, batch: int, kv_length: int) -> tuple[np.ndarray, np.ndarray]:
    """The first key of each request that is no padding, and one past the last."""
    if padding is None or kv_length == 0:
        return np.zeros(batch, np.int64), np.full(batch, kv_length, np.int64)
    begin = padding.argmax(1)
    end = kv_length - padding[:, ::-1].argmax(1)
    some = padding.any(1)
    return np.where(some, begin, 0).astype(np.int64), np.where(some, end, 0).astype(np.int64)


def _is_interval(padding: np.ndarray | None, begin: np.ndarray, end: np.ndarray) -> bool:
    return padding is None or bool((padding.sum(1) == end - begin).all())


def _expected(mask: PaddedMask) -> np.ndarray:
    """bool[batch, q_length, kv_length] of an interval mask."""
    query = mask.first_q_pos + np.arange(mask.q_length)[:, None]
    key = np.arange(mask.kv_length)[None, :]
    near = key <= query
    if mask.positions.window is not None:
        near &= key > query - mask.positions.window
    real = (key >= mask.kv_begin[:, None]) & (key < mask.kv_end[:, None])
    return near[None] & real[:, None, :]


def _bitwise(visible: np.ndarray, first_q_pos: int) -> PaddedMask:
    batch, q_length, kv_length = visible.shape
    begin, end = _interval(None, batch, kv_length)
    return PaddedMask(
        batch=batch,
        q_length=q_length,
        kv_length=kv_length,
        first_q_pos=first_q_pos,
        kv_begin=begin,
        kv_end=end,
        positions=Positions(causal=False),
        visible=visible,
    )


def _pack(visible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(u32 words, i64[batch] first word of each request), bits in row-major order, least significant first."""
    batch = visible.shape[0]
    bits = visible.reshape(batch, -1)
    words = -(-bits.shape[1] // 32)
    bits = np.pad(bits, ((0, 0), (0, words * 32 - bits.shape[1])))
    packed = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    return packed.reshape(-1), np.arange(batch, dtype=np.int64) * words
