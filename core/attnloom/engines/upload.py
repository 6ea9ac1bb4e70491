"""The way of a plan to a CUDA device: one asynchronous copy into a buffer that stays where it is."""

from __future__ import annotations

import warnings
import weakref

import torch

from attnloom.errors import PlanError
from attnloom.index import MAX_LEVELS

_SLACK = 1 << 16


class Upload:
    """The device buffer of one wrapper's plans, and the pinned ring that feeds it.

    Args:
        device: the CUDA device.
        nbytes: bytes that the buffer holds at first; it grows while no graph has captured its address.

    Attributes:
        nbytes: bytes that it holds now.
        captured: whether a graph has captured its address.
    """

    def __init__(self, device: torch.device, nbytes: int):
        from attnloom import jit

        module = jit.binding()
        self._device = device
        self._upload, self._follow = module.upload, module.follow_upload
        self._ring = int(module.ring_new(device.index))
        weakref.finalize(self, module.ring_free, self._ring)
        self._take(torch.empty(nbytes, dtype=torch.uint8, device=device))
        self.captured = False
        self._warned = False

    def _take(self, buffer) -> None:
        self._buffer, self._address, self.nbytes = buffer, buffer.data_ptr(), buffer.numel()

    def send(self, planned, stream: int, device_kv_len=None) -> None:
        """Queue the upload of a plan and its index.

        Args:
            planned: the plan, whose `args.plan`, `device_index`, `num_workers` and `merge_pass` are set.
            stream: a `cudaStream_t`, as a number.
            device_kv_len: int32 `[num_requests]` of the device, in place of the index's lengths, or none.

        Raises:
            PlanError: it needs more than a captured buffer holds. MemoryError, torch.OutOfMemoryError: no memory.
                What was uploaded before stays.
        """
        planned.index_bytes.device_kv_len = None if device_kv_len is None else device_kv_len.data_ptr()
        status = self._send(planned, self._address, self.nbytes, stream)
        if status < 0:
            needed = self.nbytes - status
            if self.captured:
                raise PlanError(
                    f"the plan and its index take {needed} bytes, but a CUDA graph has captured a buffer of "
                    f"{self.nbytes}: declare the wrapper's maxima (max_requests, max_tokens, max_pages, ...) before "
                    "capturing, or keep page ids on the device"
                )
            larger = torch.empty(needed * 3 // 2 + _SLACK, dtype=torch.uint8, device=self._device)
            status = self._send(planned, larger.data_ptr(), larger.numel(), stream)
            self._take(larger)
        if status == 1 and not self._warned:
            self._warned = True
            warnings.warn(
                "plan() waited: eight plans of this wrapper were queued before the device had taken the first. Plan no "
                "further ahead, or this costs time.",
                RuntimeWarning,
                stacklevel=4,
            )

    def follow(self, stream: int) -> None:
        """Let what comes next on `stream` (a `cudaStream_t`, as a number) wait for the newest upload."""
        self._follow(self._ring, stream)

    def _send(self, planned, buffer: int, nbytes: int, stream: int) -> int:
        plan = planned.view.address
        return self._upload(self._ring, planned.args_address, plan, planned.index_bytes_address, buffer, nbytes, stream)


def bytes_for_maxima(limits, *, group: int, num_qo_heads: int, workers: int, t_q: int, part_rows: int) -> int:
    """Bytes that the largest plan within `limits`, and its index, can take; a start where they leave it open.

    Args:
        limits: the wrapper's maxima.
        group: query heads a kv head.
        num_qo_heads: query heads.
        workers: queues of a plan.
        t_q: packed rows of the short tile class.
        part_rows: rows of partial states.
    """
    if limits.requests is None or limits.most_tokens is None:
        return _SLACK
    requests, tokens = limits.requests, limits.most_tokens
    levels = limits.levels or MAX_LEVELS
    tiles = levels * (requests + -(-tokens * group // t_q))
    plan = 64 * (tiles + 14 * workers) + 16 * tokens * num_qo_heads + 4 * part_rows
    arrays = 4 * (2 * requests + 2 * tokens) + levels * (44 * requests + 4 * tokens)
    pages = 16 * (limits.pages or 0)  # two lists of int64: the levels of a storage format share theirs
    return plan + arrays + pages + _SLACK
