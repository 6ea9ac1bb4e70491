"""Keys transformed ahead: of a batch whose units load the same keys again and again, each is transformed once, by a
kernel before that of attention, into the workspace."""

from __future__ import annotations

import numpy as np

from attnloom.dtypes import DTYPE_BYTES
from attnloom.jit.cuda_kernel import T_KV

_SLICE = 16
_TILE = max(T_KV)
_WORTH = 2.4
"""Loads of a key from which its transforms cost more than its way through memory: on an H200 RoPE takes 59 ps a load of
a key and kv head, and going ahead 138 ps a key and kv head."""

_ROW = np.dtype([("begin", np.int32), ("first", np.int32), ("end", np.int32), ("request", np.int32)])  # AheadRow


class KeysAhead:
    """What a plan's keys are when they are transformed ahead.

    Args:
        planned: the plan.

    Attributes:
        rows: of each block row of all levels where its keys lie, and an end: `AheadRow` in `args.h`.
        slots: keys that are transformed: of a block row those of whole tiles.
        loads: keys that units load, those of each kv head counted.
    """

    def __init__(self, planned):
        items = planned.view.items()
        first_rows = np.cumsum([0, *(level.num_rows for level in planned.index.levels)])
        row = first_rows[items["level"]] + items["level_row"]
        begin, end, request = (np.ascontiguousarray(items[name]) for name in ("kv_begin", "kv_end", "request"))
        self.loads = int(np.dot((end - begin).astype(np.int64), items["heads"]))
        self.rows = rows = np.zeros(first_rows[-1] + 1, _ROW)
        least, most = np.full(len(rows), np.iinfo(np.int32).max, np.int32), np.zeros(len(rows), np.int32)
        np.minimum.at(least, row, np.where(begin < end, begin, least[0]))
        np.maximum.at(most, row, np.where(begin < end, end, 0))
        tiles = np.where(most > 0, least // _TILE, 0)
        rows["first"], rows["end"] = tiles * (_TILE // _SLICE), most
        np.cumsum(((-(-most // _TILE) - tiles) * (_TILE // _SLICE))[:-1], out=rows["begin"][1:])
        rows["request"][row] = request
        rows["request"][row[rows["request"][row] != request]] = -1
        self.slots = _SLICE * int(rows["begin"][-1])


def can_go_ahead(spec, kernel) -> bool:
    """Whether a kernel of `spec` can be told to: `kGoesAhead` in `cuda/keys_ahead.cuh`."""
    return (
        "key_transform" in kernel.composition.functors
        and kernel.tiles.tall not in (None, kernel.tiles.short)
        and DTYPE_BYTES[spec.kv_dtype] == DTYPE_BYTES[spec.dtype]
    )


def keys_ahead_of(planned, spec) -> KeysAhead | None:
    """The keys of a plan, where transforming them ahead is worth it; else none."""
    tiles, rows = planned.view.num_tiles, sum(level.num_rows for level in planned.index.levels)
    if tiles - rows + 1 < _WORTH:  # no row of several tiles, mostly a decode: not worth a look
        return None
    ahead = KeysAhead(planned)
    return ahead if 0 < _WORTH * ahead.slots * spec.num_kv_heads <= ahead.loads else None
