"""Boolean masks <-> the packed words that `bit_mask` reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attnloom.errors import ParamError


def pack(masks: Sequence) -> dict[str, np.ndarray]:
    """The parameters `bit_mask.bits` and `bit_mask.begin` of a batch.

    Args:
        masks: a request each, boolean [qo_len, kv_len]; true keeps the pair. Either length may be 0.

    Raises:
        ParamError: a mask that is no boolean matrix.
    """
    words, begin = [], [0]
    for request, mask in enumerate(masks):
        mask = np.asarray(mask)
        if mask.ndim != 2 or mask.dtype != np.bool_:
            raise ParamError(
                f"mask of request {request} must be boolean [qo_len, kv_len], got {mask.dtype} {mask.shape}"
            )
        packed = np.packbits(mask.reshape(-1), bitorder="little")
        words.append(np.pad(packed, (0, -len(packed) % 4)).view("<u4").astype(np.uint32))
        begin.append(begin[-1] + len(words[-1]))
    bits = np.concatenate(words) if words else np.zeros(0, np.uint32)
    return {"bit_mask.bits": bits, "bit_mask.begin": np.array(begin, np.int64)}


def check(spec, params) -> None:
    """Raise `ParamError` where `begin` cannot be the offsets of `bits`. Tensors on a device are taken on trust."""
    bits, begin = params["bits"], params["begin"]
    if begin.shape[0] < 1:
        raise ParamError("bit_mask.begin must have one entry a request and one more, got none")
    if not begin.on_host:
        return
    offsets = begin.numpy()
    if offsets[0] < 0 or (np.diff(offsets) < 0).any():
        raise ParamError("bit_mask.begin must not decrease nor be negative")
    if offsets[-1] > bits.shape[0]:
        raise ParamError(
            f"bit_mask.begin ends at word {offsets[-1]}, beyond the {bits.shape[0]} words of bit_mask.bits"
        )


def example(spec, qo_lens, kv_lens) -> dict[str, np.ndarray]:
    """Random masks for a batch, for tests."""
    rng = np.random.default_rng(1)
    masks = [rng.random((int(q), int(k))) < 0.7 for q, k in zip(qo_lens, kv_lens, strict=True)]
    return {key.partition(".")[2]: value for key, value in pack(masks).items()}
