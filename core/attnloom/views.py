"""Addresses of an index's arrays, written into the arguments of a kernel in place."""

from __future__ import annotations

import ctypes
import struct

import numpy as np

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
    """The address of a numpy array's or host tensor's data."""
    try:
        return _addressof(_borrow(array))
    except TypeError:  # a tensor, or an array that must not be written
        return array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data


def write_index(buffer: bytearray, index: ComposedIndex, num_kv_heads: int, device) -> None:
    """Fill the `index` of the `RunArgs` that lie in `buffer`; the caller keeps `index` alive.

    Args:
        device: the `torch.device` of the kernel. Page ids may lie on it or on the host.

    Raises:
        PlanError: more levels than a kernel holds, or page lists for another number of kv heads.
        UnsupportedError: page ids on another device.
    """
    levels = index.levels
    if len(levels) > MAX_LEVELS:
        raise PlanError(f"the index has {len(levels)} levels, a kernel holds at most {MAX_LEVELS}")
    qo_indptr, kv_len = address(index.qo_indptr), address(index.kv_len)
    _INDEX.pack_into(
        buffer,
        _INDEX_AT,
        qo_indptr,
        kv_len,
        address(index.token_request),
        0 if index.q_pos is None else address(index.q_pos),
        len(index.kv_len),
        len(index.token_request),
        index.page_size,
        len(levels),
    )
    at = _LEVELS_AT
    for level in levels:
        indices, kv_start = level.indices, address(level.kv_start)
        if type(indices) is not np.ndarray:
            _check_device(indices, device)
        if level.per_head:
            _check_heads(level, num_kv_heads)
        _LEVEL.pack_into(  # what a level of one row a request shares is looked up once
            buffer,
            at,
            qo_indptr if level.row_indptr is index.qo_indptr else address(level.row_indptr),
            0 if level.row_tokens is None else address(level.row_tokens),
            kv_len if level.kv_len is index.kv_len else address(level.kv_len),
            kv_start,
            kv_start if level.kv_offset is level.kv_start else address(level.kv_offset),
            address(level.page_begin),
            address(indices),
            _head_stride(indices) if level.per_head else 0,
            0 if level.block_pos is None else address(level.block_pos),
            0 if level.mask_bits is None else address(level.mask_bits),
            0 if level.mask_begin is None else address(level.mask_begin),
            0 if level.key_pos is None else address(level.key_pos),
            0 if level.key_pos_begin is None else address(level.key_pos_begin),
            indices.itemsize == 8,
            len(level.kv_len),
        )
        at += _LEVEL_SIZE


def _check_device(indices, device) -> None:
    if indices.device.type != "cpu" and indices.device != device:
        raise UnsupportedError(
            f"the page ids are on {indices.device}, the kernel runs on {device}: use .{_move(device)}"
        )


def _check_heads(level: Level, num_kv_heads: int) -> None:
    if level.indices.shape[0] != num_kv_heads:
        raise PlanError(f"the index has page lists for {level.indices.shape[0]} kv heads, the spec has {num_kv_heads}")


def _head_stride(indices) -> int:
    stride = getattr(indices, "stride", None)
    return stride(0) if stride is not None else indices.strides[0] // indices.itemsize


def _move(device) -> str:
    return "cpu()" if device.type == "cpu" else f"to({str(device)!r})"
