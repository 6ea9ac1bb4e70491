"""Addresses of an index's arrays, written into the arguments of a kernel in place."""

from __future__ import annotations

import ctypes
import struct

from attnloom.abi import IndexView, LevelView, RunArgs
from attnloom.errors import PlanError, UnsupportedError
from attnloom.index import MAX_LEVELS, ComposedIndex, Level

_INDEX = struct.Struct("@4q4i")
_LEVEL = struct.Struct("@13q2i")
_INDEX_AT = RunArgs.index.offset
_LEVELS_AT = _INDEX_AT + IndexView.levels.offset
_LEVEL_SIZE = ctypes.sizeof(LevelView)
_borrow = (ctypes.c_char * 0).from_buffer
_addressof = ctypes.addressof


def address(array) -> int:
    """The address of a numpy array's or host tensor's data; 0 for none."""
    if array is None:
        return 0
    try:
        return _addressof(_borrow(array))
    except TypeError:
        return array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data


def write_index(buffer: bytearray, index: ComposedIndex) -> None:
    """Fill the `index` of the `RunArgs` that lie in `buffer`; the caller keeps `index` alive.

    Raises:
        PlanError, UnsupportedError: more levels than a kernel holds, or page ids that are not on the host.
    """
    levels = index.levels
    if len(levels) > MAX_LEVELS:
        raise PlanError(f"the index has {len(levels)} levels, a kernel holds at most {MAX_LEVELS}")
    _INDEX.pack_into(
        buffer,
        _INDEX_AT,
        address(index.qo_indptr),
        address(index.kv_len),
        address(index.token_request),
        address(index.q_pos),
        len(index.kv_len),
        len(index.token_request),
        index.page_size,
        len(levels),
    )
    at = _LEVELS_AT
    for level in levels:
        _write_level(buffer, at, level)
        at += _LEVEL_SIZE


def _write_level(buffer: bytearray, at: int, level: Level) -> None:
    indices = level.indices
    device = getattr(indices, "device", None)
    if device is not None and getattr(device, "type", device) != "cpu":
        raise UnsupportedError(f"the page ids are on {device}, the kernel runs on the cpu: move them with .cpu()")
    _LEVEL.pack_into(
        buffer,
        at,
        address(level.row_indptr),
        address(level.row_tokens),
        address(level.kv_len),
        address(level.kv_start),
        address(level.kv_offset),
        address(level.page_begin),
        address(indices),
        _head_stride(indices) if level.per_head else 0,
        address(level.block_pos),
        address(level.mask_bits),
        address(level.mask_begin),
        address(level.key_pos),
        address(level.key_pos_begin),
        indices.itemsize == 8,
        len(level.kv_len),
    )


def _head_stride(indices) -> int:
    stride = getattr(indices, "stride", None)
    return stride(0) if stride is not None else indices.strides[0] // indices.itemsize
