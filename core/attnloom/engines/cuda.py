"""Kernels on a CUDA device: the plan goes over in one asynchronous copy, and a captured graph sees each new one."""

from __future__ import annotations

import ctypes

import torch
from attrs import define

from attnloom.engines import long, positive
from attnloom.engines.keys_ahead import KeysAhead, can_go_ahead, keys_ahead_of
from attnloom.engines.upload import Upload, bytes_for_maxima
from attnloom.errors import PlanError, RunError
from attnloom.index import MAX_LEVELS
from attnloom.kernel import open_composed, open_kernel
from attnloom.planned import INVARIANT_KEYS
from attnloom.workspace import Workspace

raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: torch.cuda.current_stream(index).cuda_stream
)
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)


@define
class _Captured:
    """What the graphs that captured a run hold by value."""

    tokens: int
    pages: int
    params: bytes
    merge_pass: bool
    keys_room: int  # bytes of keys transformed ahead, before partial states; 0: units transform those that they load


class CudaEngine:
    """See `attnloom.engines`. One CTA a worker, all resident at a time; runs queue on torch's current stream."""

    reads_param_tensors = False  # they are on the device
    keeps_addresses = True  # a captured graph holds them

    def __init__(
        self, target, device, spec, limits, *, num_threads: int | None, num_workers: int | None, composition=None
    ):
        if num_threads is not None:
            raise PlanError(f"num_threads={num_threads!r} is of host kernels; on {device} leave it out")
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._index = self.device.index
        if composition is None:
            self.kernel = open_kernel(spec, target, limits)
        else:
            self.kernel = open_composed(spec, target, composition)
        grid = self.kernel.handle.device_workers(self._index)
        self.num_workers = positive("num_workers", num_workers, grid)
        if self.num_workers > grid:
            raise PlanError(f"num_workers is {num_workers}, but {self.device} holds {grid} workers of this kernel")
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.workers_per_processor = grid // processors if self.num_workers == grid else 1
        self._spec, self._limits = spec, limits
        self.spare_rows = limits.tokens is not None
        self._row_bytes = 4 * (spec.head_dim_v + 2)
        self._tall = max(tile.t_q for tile in (self.kernel.tiles.short, self.kernel.tiles.tall) if tile is not None)
        self._part_rows_of_a_level = 2 * self.num_workers * self._tall  # a worker shares two tiles with others at most
        self._most_part_rows = self._part_rows_for_maxima()
        # A graph made for any batch would keep that launch, and other batches change what is worth it.
        self._goes_ahead = can_go_ahead(spec, self.kernel) and not limits.any and not spec.batch_invariant
        tiles, functors = self.kernel.tiles, self.kernel.composition.functors
        self._always_ahead = tiles.tall == long.TALL and "key_transform" in functors
        self.long_spec = None if num_workers is not None else long.long_spec(spec, tiles, functors, limits)
        # Levels share rows, which a second launch then merges: a graph made for any batch needs it whatever the first.
        self._keeps_merge_pass = limits.any and limits.levels != 1 and not spec.batch_invariant
        self._upload = Upload(self.device, self._upload_for_maxima())
        self._captured: _Captured | None = None
        self._planned_on = self._ran_on = self._workspace = None

    def open_long(self) -> CudaEngine:
        """An engine of the second kernel, made of what the first was composed of. Raises as the first, RuntimeError."""
        kernel, fields = self.kernel, {"num_threads": None, "num_workers": None}
        engine = CudaEngine(
            kernel.target, self.device, self.long_spec, self._limits, composition=kernel.composition, **fields
        )
        # What was planned on one kernel leaves as much room for keys in a graph of the other.
        most = max(self._part_rows_of_a_level, engine._part_rows_of_a_level)
        self._part_rows_of_a_level = engine._part_rows_of_a_level = most
        return engine

    def follow(self, other: CudaEngine) -> None:
        """Come after what `other`, which shares the workspace, has queued. No graph has captured either."""
        self._ran_on = other._ran_on or self._ran_on

    @property
    def captured(self) -> bool:
        """Whether a graph holds a run."""
        return self._captured is not None

    def _part_rows_for_maxima(self) -> int | None:
        """Workspace rows that no batch within the maxima exceeds; none where they leave it open."""
        limits, spec = self._limits, self._spec
        if limits.most_tokens is None:
            return None
        rows = limits.most_tokens * spec.num_qo_heads
        if spec.batch_invariant:
            return None if limits.kv_len is None else rows * -(-limits.kv_len // INVARIANT_KEYS)
        composed = limits.levels is None or limits.levels > 1
        return self._part_rows_of_a_level + (rows * (limits.levels or MAX_LEVELS) if composed else 0)

    def _upload_for_maxima(self) -> int:
        return bytes_for_maxima(
            self._limits,
            group=self._spec.group,
            num_qo_heads=self._spec.num_qo_heads,
            workers=self.num_workers,
            t_q=self.kernel.tiles.short.t_q,
            part_rows=self._most_part_rows or 0,
        )

    def new_workspace(self) -> Workspace:
        """Memory for what runs compute on their way, empty."""
        return Workspace(self.device)

    def adopt(self, workspace: Workspace) -> None:
        """Take a workspace, and allocate now what the largest batch needs.

        Raises `PlanError` for one of another device, `torch.OutOfMemoryError`.
        """
        given = torch.device(workspace.device)
        if given.type != "cuda" or given.index not in (None, self.device.index):
            raise PlanError(f"the workspace is on {given}, the wrapper on {self.device}: use Workspace({self.device})")
        workspace.reserve((self._most_part_rows or 0) * self._row_bytes)

    def before_plan(self) -> None:
        """Raises `PlanError` while a graph is being captured: what a plan uploads would become part of it."""
        if raw_stream(self._index) and _is_capturing():  # the legacy default stream, 0, never is
            raise PlanError("plan() was called while a CUDA graph is captured: plan before, and before each replay")

    def seat(self, planned, workspace: Workspace, kv_lens=None) -> None:
        """Reserve the workspace of a plan and queue its upload.

        Args:
            planned: the plan.
            workspace: where its partial states go.
            kv_lens: int32 of the device that the kernel reads in place of the index's, or none.

        Raises:
            PlanError: a batch that a captured graph does not serve. MemoryError, torch.OutOfMemoryError.
        """
        if self._captured is not None:
            self._check_captured(planned)
        if self._goes_ahead:
            self._go_ahead(planned, kv_lens)
        workspace.reserve(planned.reserved_bytes)
        self._workspace = workspace
        stream = raw_stream(self._index)
        if self._ran_on is not None and self._ran_on != stream:
            with torch.cuda.device(self.device):
                torch.cuda.current_stream().wait_stream(torch.cuda.ExternalStream(self._ran_on))
        self._upload.send(planned, stream, kv_lens)
        if self._keeps_merge_pass:
            planned.args.merge_pass = 1
        self._planned_on, self._ran_on = stream, None

    def _check_captured(self, planned) -> None:
        captured = self._captured
        if planned.num_tokens > captured.tokens:
            raise PlanError(
                f"the batch has {planned.num_tokens} tokens, but a CUDA graph has captured tensors of "
                f"{captured.tokens} rows: capture with tensors for the largest batch"
            )
        if (top := planned.index.max_page()) >= captured.pages:
            raise PlanError(
                f"the batch uses page {top}, but a CUDA graph has captured a cache of {captured.pages} pages"
            )
        if len(planned.index.levels) > 1 and not captured.merge_pass:
            raise PlanError(
                f"the batch has {len(planned.index.levels)} levels, but a CUDA graph has captured a run of one, "
                "without the launch that merges them: declare the wrapper's maxima (max_levels, ...) before capturing"
            )
        if _params_bytes(planned.bound) != captured.params:
            raise PlanError(
                "the batch has other parameters than the CUDA graph that captured a run of this wrapper: parameters "
                "are part of a graph; let those that change be 0-d tensors, or capture again with another wrapper"
            )

    def _go_ahead(self, planned, kv_lens) -> None:
        """Let the plan's keys be transformed ahead where that is worth it, or where a captured graph does so."""
        level_bytes = self._part_rows_of_a_level * self._row_bytes
        if self._captured is None:
            # A graph that captures a run then serves every batch of one level whose keys the workspace holds.
            if self._always_ahead:
                planned.transform_ahead(KeysAhead(planned), left=level_bytes)
            elif kv_lens is None:  # which are bounds otherwise
                planned.transform_ahead(keys_ahead_of(planned, self._spec), left=level_bytes)
        elif room := self._captured.keys_room:
            planned.transform_ahead(KeysAhead(planned), room=room)
            if planned.keys_bytes > room:
                raise PlanError(
                    f"the batch has {planned.keys_bytes} bytes of keys to transform ahead, but a CUDA graph has "
                    f"captured room for {room}, and keeps its kernel. Before capturing, plan the batch of most keys "
                    f"once, or call wrapper.workspace.reserve({planned.keys_bytes + level_bytes}); or declare the "
                    "wrapper's maxima (max_tokens, ...), with which no keys are transformed ahead"
                )

    def require(self, q, k, v, out, lse) -> None:
        """Raises `RunError` unless all are torch tensors, `lse` possibly none; the launcher checks where they lie."""
        if type(q) is type(k) is type(v) is type(out) is torch.Tensor and lse is None:
            return
        for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out), ("lse", out if lse is None else lse)):
            if not isinstance(tensor, torch.Tensor):
                raise RunError(f"{name} must be a torch tensor, got {type(tensor).__name__}")

    def empty(self, shape, dtype):
        """A new tensor of `shape` and of a torch dtype on the device, its values whatever they are."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def launch(self, planned, q, k, v, out, lse) -> None:
        """Queue the kernel on the current stream, and the merge after it where the plan needs one.

        Args:
            planned: the plan in force.
            q, k, v, out, lse: as `KernelHandle.run` takes them.

        Raises:
            RunError: tensors that do not match the plan; nothing was queued. RuntimeError: an error of CUDA.
        """
        stream = raw_stream(self._index)
        if stream != self._planned_on:
            self._meet(stream)
        captured = self.kernel.run(planned.args_address, q, k, v, out, lse, stream)
        self._ran_on = stream
        if captured:
            self._note_capture(planned, q, k, out, lse)

    def _meet(self, stream: int) -> None:
        """Order a run on another stream than the plan's after the upload; a captured one is ordered by its replay."""
        with torch.cuda.device(self.device):
            if not _is_capturing():
                self._upload.follow(stream)

    def _note_capture(self, planned, q, k, out, lse) -> None:
        rows = min(tensor.shape[0] for tensor in (q, out, lse) if tensor is not None)
        pages, merge_pass = k.shape[0], bool(planned.args.merge_pass)
        if self._captured is not None:
            rows, pages = min(rows, self._captured.tokens), min(pages, self._captured.pages)
            merge_pass = merge_pass and self._captured.merge_pass
        args = planned.args
        keys_room = args.partial_o - args.keys_ahead if args.keys_ahead else 0
        self._captured = _Captured(rows, pages, _params_bytes(planned.bound), merge_pass, keys_room)
        self._upload.captured = True
        self._workspace.captured()
        self._ran_on = None


def _params_bytes(bound) -> bytes:
    return bytes(ctypes.string_at(bound.address, ctypes.sizeof(bound.struct)))
