"""ctypes mirrors of `scheduler.h` and `plan.h`, and the quick way to an array's address."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_void_p
from typing import Any

SCHEDULER_ABI = 2
PLAN_ABI = 2
PARTITIONERS = ("nothing", "contiguous_cut", "longest_first")
ITEM_PARTIAL = 1
ITEM_WHOLE_ROW = 2
ITEM_READ_ONCE = 4

#: `(ctx, level, row, q_begin, q_tokens, bounds) -> count`, the type of `PlanInput.range_fn`; for ranges in Python.
RangeFn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int32, c_int32, c_int32, c_int32, ctypes.POINTER(c_int32))


class TileClass(ctypes.Structure):
    """A tile shape, and its items' cost: `alpha + (beta + row_beta * rows) * keys` picoseconds for each kv head."""

    _fields_ = (("t_q", c_int32), ("t_kv", c_int32), ("alpha", c_int64), ("beta", c_int64), ("row_beta", c_int64))


class PlanInput(ctypes.Structure):
    """What a plan is made from. `index` is the address of an `IndexView`; `scheduler.h` explains the fields.

    Fill one once a wrapper: only `index` (if it moves), `range_fn` and `range_ctx` change between plans.
    """

    _fields_ = (
        ("abi", c_int32),
        ("num_workers", c_int32),
        ("num_kv_heads", c_int32),
        ("group", c_int32),
        ("num_classes", c_int32),
        ("batch_invariant_chunk", c_int32),
        ("invariant_class", c_int32),
        ("workers_per_processor", c_int32),
        ("merge_base", c_int64),
        ("gamma", c_int64),
        ("cache_bytes", c_int64),
        ("kv_bytes_per_key", c_int64),
        ("classes", TileClass * 2),
        ("index", c_void_p),
        ("range_fn", c_void_p),
        ("range_ctx", c_void_p),
    )

    def __init__(self, *, classes=(), **fields):
        super().__init__(abi=SCHEDULER_ABI, num_classes=len(classes), **fields)
        for i, tile_class in enumerate(classes):
            self.classes[i] = tile_class


class PlanSummary(ctypes.Structure):
    """What a plan came to; `scheduler.h` explains the fields."""

    _fields_ = (
        ("plan", c_void_p),
        ("nbytes", c_int64),
        ("makespan", c_int64),
        ("busiest", c_int64),
        ("total", c_int64),
        ("num_items", c_int32),
        ("num_merge", c_int32),
        ("num_merge_parts", c_int32),
        ("num_part_rows", c_int32),
        ("num_tiles", c_int32),
        ("partitioner", c_int32),
    )


class Item(ctypes.Structure):
    """One unit of work, 64 bytes; `plan.h` explains the fields."""

    _fields_ = (
        ("page_begin", c_int64),
        ("q_begin", c_int32),
        ("q_tokens", c_int32),
        ("request", c_int32),
        ("kv_begin", c_int32),
        ("kv_end", c_int32),
        ("kv_start", c_int32),
        ("kv_offset", c_int32),
        ("level_row", c_int32),
        ("row_tokens_before", c_int32),
        ("row_kv_len", c_int32),
        ("part_row", c_int32),
        ("merge_id", c_int32),
        ("head0", c_uint16),
        ("heads", c_uint16),
        ("level", c_uint8),
        ("tile_class", c_uint8),
        ("flags", c_uint16),
    )


class WorkerQueue(ctypes.Structure):
    """Where a worker begins; `plan.h` explains the fields."""

    _fields_ = (("first", Item), ("next", c_int32), ("end", c_int32), ("reserved", c_int32 * 2))


class PlanHeader(ctypes.Structure):
    """The head of a plan buffer; offsets are bytes from its own address."""

    _fields_ = (
        ("abi", c_int32),
        ("num_workers", c_int32),
        ("num_items", c_int32),
        ("num_merge", c_int32),
        ("num_merge_parts", c_int32),
        ("num_part_rows", c_int32),
        ("num_classes", c_int32),
        ("t_q", c_int32 * 2),
        ("t_kv", c_int32 * 2),
        ("fused_merge", c_int32),
        ("workers", c_int64),
        ("items", c_int64),
        ("merge_token", c_int64),
        ("merge_head", c_int64),
        ("merge_indptr", c_int64),
        ("merge_part", c_int64),
        ("arrived", c_int64),
        ("total_bytes", c_int64),
    )


_from_buffer = ctypes.c_char.from_buffer
_addressof = ctypes.addressof


def address_of(array: Any) -> int:
    """The address of a contiguous numpy array's data, eight times quicker than `array.ctypes.data`.

    The caller keeps the array alive. An empty or read-only array takes the slow way.
    """
    try:
        return _addressof(_from_buffer(array))
    except (TypeError, ValueError):
        return array.__array_interface__["data"][0]
