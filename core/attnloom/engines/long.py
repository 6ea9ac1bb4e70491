"""The second kernel of a wrapper on Hopper, for batches whose rows see many keys.

Blocks of it have a multiprocessor to themselves: four warps copy for eight that compute. Each tile of keys costs less
there, and each unit of work more, so that short prompts, and requests that share a prefix, stay with the first kernel.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from attnloom.errors import UnsupportedError
from attnloom.tile import Tile, TileChoice

TALL = Tile(128, 128, "wgmma")
"""The tall tile of the second kernel."""

_KEYS = 128
"""Keys that a row sees on average from which it is faster: prompts of 384 tokens gain 1.12x on an H200, those of 256
1.05x, and those of 128 1.01x, which is not worth a second compile."""

_ROWS = 384
"""Packed rows of a request, on average, below which most of its tiles are not full."""

BATCHES = (
    f"batches of one level whose requests have {_ROWS} packed rows or more on average and whose rows see {_KEYS} keys "
    f"or more, counted causally, in pages of {TALL.t_kv} slots or more, or of a multiple of 8"
)
"""What `is_long` asks for."""


def long_spec(spec, tiles, functors, limits):
    """`spec` with the tiles of the second kernel, or none where a wrapper has one kernel.

    It has one where tiles were given, where a plugin chose them, or where others than the core's were measured; where
    maxima are declared (a captured graph keeps its kernel, whatever the batch), where bits must not depend on the
    batch, for fp8 caches, for a `value_transform`, and where groups are larger than 32. Nor has it two where the number
    of workers is given.

    Args:
        spec: of the wrapper.
        tiles: those of its first kernel.
        functors: names that its composed variants define.
        limits: the wrapper's maxima.
    """
    from attnloom.builtin import AUTO

    usual = tiles.by == AUTO.name and tiles.tall == evolve(TALL, t_kv=64) and tiles.short.t_q <= 32
    as_they_are = spec.kv_dtype == spec.dtype and "value_transform" not in functors
    if not usual or limits.any or spec.batch_invariant or not as_they_are:
        return None
    return evolve(spec, tile=TileChoice(short=evolve(tiles.short, t_kv=TALL.t_kv), tall=TALL))


def require_copies(spec, tiles, functors, limits) -> None:
    """Refuse tiles whose copying warps would have to transform what they copy: they copy keys transformed ahead.

    Args:
        spec: what to compute.
        tiles: `TALL` is one of them.
        functors: names that the composed variants define.
        limits: the wrapper's maxima.

    Raises:
        UnsupportedError: for a `value_transform`, or a `key_transform` of keys that are not transformed ahead.
    """
    if "value_transform" in functors:
        raise UnsupportedError(
            f"{TALL} with a value_transform: warps that copy for others do not transform values; take a t_kv of 64"
        )
    if "key_transform" not in functors:
        return
    alone = tiles.tall in (None, tiles.short) or tiles.tall != TALL
    faults = {"no shorter tile": alone, "maxima": limits.any, "batch_invariant=True": spec.batch_invariant}
    if any(faults.values()):
        raise UnsupportedError(
            f"{TALL} with a key_transform: its keys are transformed ahead, which takes a shorter tile beside it, a "
            "wrapper without maxima, and batch_invariant=False, but here is "
            f"{' and '.join(fault for fault, holds in faults.items() if holds)}; take a t_kv of 64"
        )


def is_long(index, group: int) -> bool:
    """Whether the rows of a batch of one level see so many keys, causally, that the second kernel is faster."""
    in_boxes = index.page_size >= TALL.t_kv or index.page_size % 8 == 0  # see cuda/tensor_maps.h
    if index.single is not None or len(index.levels) != 1 or not in_boxes:
        return False
    tokens, requests = index.num_tokens, index.num_requests
    if tokens * group < _ROWS * requests or requests == 0:
        return False
    lengths = np.diff(index.qo_indptr).astype(np.float64)
    return float(np.dot(lengths, index.kv_len - lengths / 2)) >= _KEYS * tokens
