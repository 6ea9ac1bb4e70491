"""The way of a plan to a CUDA device: one asynchronous copy into a buffer that stays where it is."""

from __future__ import annotations

import ctypes
import struct
import warnings
import weakref

import numpy as np
import torch

from attnloom.errors import PlanError
from attnloom.index import MAX_LEVELS, ComposedIndex, Level

_SLACK = 1 << 16
_LENGTHS, _ARRAYS = struct.Struct("@q"), struct.Struct("@4q")
"""`IndexBytes` of csrc/plan_ring.cc: the address of device lengths or 0, then bytes of each level's arrays."""


class Upload:
    """The device buffer of one wrapper's plans, and the pinned ring that feeds it.

    Args:
        device: the CUDA device.
        nbytes: what the buffer holds at first; it grows while no graph has captured its address.
    """

    def __init__(self, device: torch.device, nbytes: int):
        from attnloom import jit

        module = jit.binding()
        self._device = device
        self._upload, self._follow = module.upload, module.follow_upload
        self._ring = int(module.ring_new(device.index))
        weakref.finalize(self, module.ring_free, self._ring)
        self._bytes = bytearray(_LENGTHS.size + _ARRAYS.size * MAX_LEVELS)
        self._bytes_address = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        self._buffer = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.captured = False
        self._warned = False

    @property
    def nbytes(self) -> int:
        """Bytes of the device buffer."""
        return self._buffer.numel()

    def send(self, planned, stream: int, device_kv_len=None) -> None:
        """Queue the upload of a plan and its index on `stream`; sets `plan` and `device_index` of its arguments.

        Raises:
            PlanError: it needs more than a captured buffer holds. MemoryError, torch.OutOfMemoryError: no memory.
                What was uploaded before stays.
        """
        self._describe(planned.index, device_kv_len)
        status = self._send(planned, self._buffer, stream)
        if status < 0:
            needed = self.nbytes - status
            if self.captured:
                raise PlanError(
                    f"the plan and its index take {needed} bytes, but a CUDA graph has captured a buffer of "
                    f"{self.nbytes}: declare the wrapper's maxima (max_requests, max_tokens, max_pages, ...) before "
                    "capturing, or keep page ids on the device"
                )
            larger = torch.empty(needed * 3 // 2 + _SLACK, dtype=torch.uint8, device=self._device)
            status = self._send(planned, larger, stream)
            self._buffer = larger
        if status == 1 and not self._warned:
            self._warned = True
            warnings.warn(
                "plan() waited: four plans of this wrapper were queued before the device had taken the first. Plan no "
                "further ahead, or this costs time.",
                RuntimeWarning,
                stacklevel=5,
            )

    def follow(self, stream: int) -> None:
        """Let what comes next on `stream` wait for the newest upload."""
        self._follow(self._ring, stream)

    def _send(self, planned, buffer, stream: int) -> int:
        return self._upload(
            self._ring,
            planned.args_address,
            planned.view.address,
            self._bytes_address,
            buffer.data_ptr(),
            buffer.numel(),
            stream,
        )

    def _describe(self, index: ComposedIndex, device_kv_len) -> None:
        _LENGTHS.pack_into(self._bytes, 0, 0 if device_kv_len is None else device_kv_len.data_ptr())
        at = _LENGTHS.size
        for level in index.levels:
            _ARRAYS.pack_into(
                self._bytes,
                at,
                _page_bytes(level),
                0 if level.block_pos is None else level.block_pos.nbytes,
                0 if level.mask_bits is None else level.mask_bits.nbytes,
                0 if level.key_pos is None else level.key_pos.nbytes,
            )
            at += _ARRAYS.size


def _page_bytes(level: Level) -> int:
    """Bytes of the page ids from the first to the last, the lists of all heads; -1 where they are on the device."""
    indices = level.indices
    if type(indices) is np.ndarray:
        if indices.ndim == 1:
            return indices.nbytes
        heads, stride = indices.shape[0], indices.strides[0]
    else:
        if indices.device.type != "cpu":
            return -1
        if indices.dim() == 1:
            return indices.numel() * indices.element_size()
        heads, stride = indices.shape[0], indices.stride(0) * indices.element_size()
    return (heads - 1) * stride + indices.shape[-1] * indices.itemsize if heads else 0


def bytes_for_maxima(limits, *, group: int, num_qo_heads: int, workers: int, t_q: int, part_rows: int) -> int:
    """What the largest plan within `limits`, and its index, can take; a start where they leave it open."""
    if limits.requests is None or limits.most_tokens is None:
        return _SLACK
    requests, tokens = limits.requests, limits.most_tokens
    levels = limits.levels or MAX_LEVELS
    tiles = levels * (requests + -(-tokens * group // t_q))
    plan = 64 * (tiles + 14 * workers) + 12 * tokens * num_qo_heads + 4 * part_rows
    arrays = 4 * (2 * requests + 2 * tokens) + levels * (44 * requests + 4 * tokens)
    pages = 16 * (limits.pages or 0)  # two lists of int64: the levels of a storage format share theirs
    return plan + arrays + pages + _SLACK
