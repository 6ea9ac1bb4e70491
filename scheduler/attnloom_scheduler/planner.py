"""The C++ planner, called through ctypes."""

from __future__ import annotations

import ctypes
import struct
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path

from attnloom.abi import IndexView
from attnloom.errors import PlanError

from attnloom_scheduler.inputs import PARTITIONERS, Item, PlanHeader, PlanInput, PlanSummary

_SUMMARY = struct.Struct("@5q6i")
_OUTGROWN = 2


class PlanView:
    """A plan in force: where its bytes are and what it came to.

    Attributes:
        address: of the `PlanHeader`, 64-byte aligned. Valid until the second successful `plan` after this one.
        nbytes: bytes of the whole plan, one contiguous run from `address`.
        num_items, num_tiles: work items, and the q tiles they came from.
        num_merge, num_merge_parts: output rows made of partials, and the partials they are made of.
        num_part_rows: rows of the workspace that `run` needs, exactly.
        makespan, busiest, total: predicted picoseconds, of the whole; of the busiest worker and of all, without merge.
        partitioner: `"contiguous_cut"`, `"longest_first"` or, for an empty batch, `"nothing"`.
    """

    __slots__ = (
        "_generation",
        "_partitioner",
        "_planner",
        "address",
        "busiest",
        "makespan",
        "nbytes",
        "num_items",
        "num_merge",
        "num_merge_parts",
        "num_part_rows",
        "num_tiles",
        "total",
    )

    @property
    def partitioner(self) -> str:
        """Which of the two ways of dealing work was predicted to end first."""
        return PARTITIONERS[self._partitioner]

    def to_bytes(self) -> bytes:
        """A copy of the plan's bytes. Raises `PlanError` once two newer plans have taken its buffer."""
        self._check_alive()
        return ctypes.string_at(self.address, self.nbytes)

    def decode(self):
        """The plan as a `decoded.Plan` of named items and merge lists, for tests and pictures; needs numpy."""
        from attnloom_scheduler.decoded import decode

        return decode(self.to_bytes())

    def items(self):
        """The work items, in no order, as a structured array of the fields of `Item`; needs numpy."""
        from attnloom_scheduler.decoded import items_of

        return items_of(self.to_bytes())

    def _check_alive(self) -> None:
        newer = self._planner.generation - self._generation
        if newer >= _OUTGROWN:
            raise PlanError(f"this plan's buffer was reused: {newer} newer plans were made; keep the last one")


class Planner:
    """Plans batches, over and over, in memory that it reuses. One thread uses a planner at a time.

    Args:
        library_path: the scheduler's shared library, built from `attnloom_scheduler.sources()`.

    Attributes:
        generation: how many plans have succeeded.

    Raises:
        PlanError: if the library was built from other headers than these mirrors.
    """

    def __init__(self, library_path: str | Path):
        library = ctypes.CDLL(str(library_path))
        _check_sizes(library, library_path)
        library.attnloom_planner_create.restype = c_void_p
        library.attnloom_planner_error.restype = c_char_p
        library.attnloom_planner_error.argtypes = (c_void_p,)
        library.attnloom_planner_destroy.argtypes = (c_void_p,)
        library.attnloom_planner_destroy.restype = None
        self._library = library
        self._handle = library.attnloom_planner_create()
        if not self._handle:
            raise MemoryError("no memory for a planner")
        self._plan = library.attnloom_planner_plan
        self._plan.restype = c_int32
        self._summary = PlanSummary()
        self._arguments = (c_void_p(self._handle), ctypes.byref(self._summary))
        self._input = None
        self._input_ref = None
        self.generation = 0

    def plan(self, inputs: PlanInput) -> PlanView:
        """Plans a batch. All arrays that `inputs` points at must be alive until it returns; none is kept.

        Raises:
            PlanError: for a batch that cannot be planned, with both values; the last plan stays in force.
        """
        if inputs is not self._input:
            self._input, self._input_ref = inputs, ctypes.byref(inputs)
        handle, summary = self._arguments
        if self._plan(handle, self._input_ref, summary):
            raise PlanError(self._library.attnloom_planner_error(self._handle).decode())
        view = PlanView()
        (
            view.address,
            view.nbytes,
            view.makespan,
            view.busiest,
            view.total,
            view.num_items,
            view.num_merge,
            view.num_merge_parts,
            view.num_part_rows,
            view.num_tiles,
            view._partitioner,
        ) = _SUMMARY.unpack_from(self._summary)
        self.generation += 1
        view._planner = self
        view._generation = self.generation
        return view

    def __del__(self):
        if getattr(self, "_handle", None):
            self._library.attnloom_planner_destroy(self._handle)

    def __reduce__(self):
        raise TypeError("a Planner cannot be pickled: it owns memory of this process; make one where it is used")


def _check_sizes(library: ctypes.CDLL, path: str | Path) -> None:
    sizes = (c_int64 * 5)()
    library.attnloom_scheduler_sizes(sizes)
    mirrors = (PlanInput, PlanSummary, PlanHeader, Item, IndexView)
    for mirror, size in zip(mirrors, sizes, strict=True):
        if ctypes.sizeof(mirror) != size:
            raise PlanError(
                f"{path} has a {mirror.__name__} of {size} bytes, this Python expects {ctypes.sizeof(mirror)}; "
                "rebuild the library"
            )
