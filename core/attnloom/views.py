"""Where the arrays of an index lie, written into the arguments of a kernel in place."""

from __future__ import annotations

import ctypes
from operator import attrgetter

from numpy import ndarray

from attnloom.abi import IndexBytes, RunArgs
from attnloom.errors import PlanError, UnsupportedError
from attnloom.index import MAX_LEVELS, ComposedIndex, Level

_of_index = attrgetter("qo_indptr", "kv_len", "token_request", "q_pos")
_of_level = attrgetter(
    "row_indptr", "row_tokens", "kv_len", "kv_start", "kv_offset", "page_begin", "indices",
    "block_pos", "mask_bits", "mask_begin", "key_pos", "key_pos_begin",
)  # fmt: skip
_PAGES_OF_LEVEL = 6


class IndexViewer:
    """Writes views of indices into the arguments of one kernel.

    Args:
        args: the `RunArgs` whose `index` is filled.
        index_bytes: the `IndexBytes` beside it.
        num_kv_heads: of the kernel.
        device: the `torch.device` of the kernel. Page ids may lie on it or on the host.
    """

    def __init__(self, args: RunArgs, index_bytes: IndexBytes, num_kv_heads: int, device):
        from attnloom.jit.launcher import view_index

        self._fill = view_index()
        self._levels = tuple(args.index.levels)
        self._places = ctypes.c_void_p(ctypes.addressof(args.index)), ctypes.c_void_p(ctypes.addressof(index_bytes))
        self._num_kv_heads, self._device = num_kv_heads, device
        self._written: ComposedIndex | None = None

    def write(self, index: ComposedIndex) -> None:
        """Fill the view, unless it is of this index already, whose arrays stay where they are.

        Raises:
            PlanError: more levels than a kernel holds, or page lists for another number of kv heads.
            UnsupportedError: page ids on another device.
        """
        if index is self._written:
            return
        self._written, levels = None, index.levels
        if len(levels) > MAX_LEVELS:
            raise PlanError(f"the index has {len(levels)} levels, a kernel holds at most {MAX_LEVELS}")
        arrays, on_device = _of_index(index), []
        for number, level in enumerate(levels):
            if level.per_head:
                self._check_heads(level)
            of_level = _of_level(level)
            indices = of_level[_PAGES_OF_LEVEL]
            if type(indices) is not ndarray:
                pages = self._host_pages(indices)
                of_level = (*of_level[:_PAGES_OF_LEVEL], pages, *of_level[_PAGES_OF_LEVEL + 1 :])
                if pages is None:
                    on_device.append((self._levels[number], indices))
            arrays += of_level
        self._fill(arrays, index.page_size, *self._places)
        for view, indices in on_device:
            view.indices, view.indices_are_64 = indices.data_ptr(), indices.itemsize == 8
            view.indices_head_stride = indices.stride(0) if indices.dim() == 2 else 0
        self._written = index

    def _host_pages(self, indices):
        """A tensor of page ids as an array, none where it is on the kernel's device."""
        if indices.device.type == "cpu":
            return indices.numpy()
        if indices.device != self._device:
            raise UnsupportedError(
                f"the page ids are on {indices.device}, the kernel runs on {self._device}: use .{_move(self._device)}"
            )
        return None

    def _check_heads(self, level: Level) -> None:
        if level.indices.shape[0] != self._num_kv_heads:
            raise PlanError(
                f"the index has page lists for {level.indices.shape[0]} kv heads, the spec has {self._num_kv_heads}"
            )


def _move(device) -> str:
    return "cpu()" if device.type == "cpu" else f"to({str(device)!r})"
