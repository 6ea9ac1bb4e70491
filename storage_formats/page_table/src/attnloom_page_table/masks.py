"""Masks of a batch, packed as a level keeps them."""

from __future__ import annotations

import numpy as np
from attnloom.errors import IndexFormatError
from attnloom.index_arrays import as_host_array, is_tensor, pack_bits


def pack_masks(mask, qo_len, kv_len):
    """Packs bool masks, each from a new word.

    Args:
        mask: a bool array `[qo_len, kv_len]` (or none) for each request, or one flat bool array of them all.
        qo_len, kv_len: i32[B].

    Returns:
        `(mask_bits u32[W], mask_begin i64[B])`.

    Raises:
        IndexFormatError: for another dtype or shape, naming the request.
    """
    if not hasattr(mask, "__len__") or isinstance(mask, (str, bytes)):
        raise IndexFormatError(f"mask must hold a bool array for each request, got {mask!r}")
    masks = _split(mask, qo_len, kv_len) if is_tensor(mask) or isinstance(mask, np.ndarray) else list(mask)
    if len(masks) != len(qo_len):
        raise IndexFormatError(f"mask has {len(masks)} mask(s), the batch has {len(qo_len)} request(s)")
    words, begin, total = [], np.full(len(masks), -1, np.int64), 0
    for request, bits in enumerate(masks):
        if bits is None:
            continue
        bits = as_host_array(bits, f"mask[{request}]")
        expected = (int(qo_len[request]), int(kv_len[request]))
        if bits.dtype != bool or bits.shape != expected:
            raise IndexFormatError(
                f"mask[{request}] is {bits.dtype} of shape {list(bits.shape)}, expected bool of shape {list(expected)}"
            )
        words.append(pack_bits(bits))
        begin[request] = total
        total += len(words[-1])
    return np.concatenate([*words, np.zeros(0, np.uint32)]), begin


def _split(mask, qo_len, kv_len):
    flat = as_host_array(mask, "mask")
    sizes = qo_len.astype(np.int64) * kv_len
    if flat.ndim != 1 or len(flat) != sizes.sum():
        expected = f"one dimension of {sizes.sum()} elements, the sum of qo_len * kv_len"
        raise IndexFormatError(f"mask has shape {list(flat.shape)}, expected {expected}")
    parts = np.split(flat, np.cumsum(sizes)[:-1]) if len(sizes) else []
    return [part.reshape(q, k) for part, q, k in zip(parts, qo_len, kv_len, strict=True)]
