"""Plan a batch once, run it for every layer."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Mapping

import torch

from attnloom import custom_op
from attnloom.cache import cache_views, layout_hint
from attnloom.dtypes import torch_dtype
from attnloom.engines import long, open_engine
from attnloom.errors import CompileError, NotPlannedError, ParamError, PlanError, RunError, UnsupportedError
from attnloom.index import ComposedIndex
from attnloom.limits import Limits
from attnloom.planned import Planned, Side
from attnloom.scales import UNSCALED, scale_of
from attnloom.spec import AttentionSpec
from attnloom.workspace import Workspace

_numbers = itertools.count()
_UNSCALED = UNSCALED, UNSCALED
_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled


class AttentionWrapper:
    """One compiled attention computation on one device.

    `plan(index)` inspects a batch on the host; `run(q, kv)` computes it, any number of times (a step's plan serves
    every layer that shares a spec). A wrapper belongs to one thread; specs, plugins and compiled kernels may be shared.

    Args:
        spec: what to compute.
        device: `"cpu"`, `"cuda"` (torch's current device) or `"cuda:1"`; tensors of `run` lie there.
        max_requests, max_tokens, max_qo_len, max_kv_len, max_pages, max_levels: what a plan may hold at most
            (none: no bound); `max_pages` counts entries of a level's page lists. A larger batch raises in `plan`. On
            CUDA all memory for the largest batch is allocated at once, so that a captured graph serves every batch: run
            under capture with tensors for `max_tokens`, then plan and replay. Where there is any bound, a run
            there is two launches, unless `max_levels` is 1 or the spec is batch-invariant, and no keys are transformed
            ahead.
        num_threads: OpenMP threads of `run` on the cpu (none: `torch.get_num_threads()`).
        num_workers: queues the plan is cut into (none: one a thread, or as many as the device holds at a time). The
            number may change rounding, nothing else.
        workspace: memory for partial states, to share between wrappers that run one after the other.
        name: what `torch.ops.attnloom.run` knows it by (none: a new one).

    Attributes:
        spec, device, num_workers, workspace, name: what is in force.
        kernel: the `attnloom.kernel.Kernel` that runs, with its tiles. On Hopper a wrapper may have a second one, for
            batches whose rows see many keys (`attnloom.engines.long`), which the first such plan opens.

    Raises:
        UnsupportedError: a device that is not there, or that no kernel runs on.
        PlanError: arguments of a wrong type, maxima below 0, more workers than the device holds at a time,
            `num_threads` on CUDA, or a workspace of another device.
        Others as `attnloom.kernel.open_kernel`: composing and compiling happen here.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        device="cpu",
        *,
        max_requests: int | None = None,
        max_tokens: int | None = None,
        max_qo_len: int | None = None,
        max_kv_len: int | None = None,
        max_pages: int | None = None,
        max_levels: int | None = None,
        num_threads: int | None = None,
        num_workers: int | None = None,
        workspace: Workspace | None = None,
        name: str | None = None,
    ):
        if not isinstance(spec, AttentionSpec):
            raise PlanError(f"spec must be an AttentionSpec, got {type(spec).__name__}")
        if workspace is not None and not isinstance(workspace, Workspace):
            raise PlanError(f"workspace must be an attnloom.Workspace, got {type(workspace).__name__}")
        if name is not None and not isinstance(name, str):
            raise PlanError(f"name must be a string, got {name!r}")
        self.spec = spec
        self.limits = Limits(max_requests, max_tokens, max_qo_len, max_kv_len, max_pages, max_levels)
        self._limited = self.limits.any
        self._engine = open_engine(device, spec, self.limits, num_threads=num_threads, num_workers=num_workers)
        self.device, self.kernel = self._engine.device, self._engine.kernel
        self.num_workers = self._engine.num_workers
        self.workspace = self._engine.new_workspace() if workspace is None else workspace
        self._engine.adopt(self.workspace)
        self.name = f"attention_{next(_numbers)}" if name is None else name
        self._out_dtype = torch_dtype(spec.out_dtype)
        self._byte_cache = torch_dtype(spec.kv_dtype) if spec.kv_dtype.startswith("float8") else None
        self._usual = self._side = Side(spec, self._engine)
        self._long: Side | None = None
        self._plan: Planned | None = None
        self._kv_lens = None
        self._busy = threading.Lock()
        custom_op.register(self)

    def plan(self, index: ComposedIndex, *, params: dict | None = None, kv_lens=None) -> None:
        """Inspect a batch; later runs compute it. On CUDA nothing waits for the device.

        Args:
            index: the batch, from a storage format. It is read again by each run: leave its arrays as they are.
            params: values of variant parameters over the spec's, in force until the next plan.
            kv_lens: on CUDA, an int32 tensor `[num_requests]` of the device: the lengths, not larger than the index's,
                which kernels read when they run.

        Raises:
            IndexFormatError: the index contradicts itself.
            PlanError: it is larger than the declared maxima or than what a captured graph serves, or made for other
                heads; or a graph is being captured. ParamError: wrong `params`. UnsupportedError: `kv_lens` on the cpu.
                MemoryError, torch.OutOfMemoryError. The plan in force before stays in force.
            RunError: another thread is using the wrapper.
        """
        if not isinstance(index, ComposedIndex):
            raise PlanError(
                f"plan takes a ComposedIndex, as storage_format(...).build_index(...) makes it, got a "
                f"{type(index).__name__}; the plan in force stays"
            )
        if params is not None:
            _check_params(params)
        self._enter()
        try:
            index.ensure_valid()
            if self._limited:
                self.limits.check(index)
            if kv_lens is not None:
                _check_lengths(kv_lens, index, self.device)
            self._engine.before_plan()
            side = self._side_of(index, kv_lens)
            planned = side.spare(self._plan)
            planned.bind(side.binding.bind(params))
            planned.plan(index, every_key=kv_lens is not None)
            if side is not self._side:
                side.engine.follow(self._side.engine)
            side.engine.seat(planned, self.workspace, kv_lens)
            self._kv_lens, self._side, self._plan = kv_lens, side, planned
        finally:
            self._busy.release()

    def _side_of(self, index: ComposedIndex, kv_lens) -> Side:
        """The kernel for a batch: that which a captured graph holds, else the one that is faster."""
        if self._engine.long_spec is None or self._engine.captured:
            return self._usual
        if self._long is not None and self._long.engine.captured:
            return self._long
        if kv_lens is not None or not long.is_long(index, self.spec.group):
            return self._usual
        if self._long is None:
            try:
                engine = self._engine.open_long()
            except (CompileError, UnsupportedError, RuntimeError, MemoryError) as error:
                # No compiler, where the first kernel was built ahead of time; or no room for so many ranges or buffers.
                self.spec.plugin_set.warn_once(f"batches of long rows run on the wrapper's first kernel: {error}")
                self._engine.long_spec = None
                return self._usual
            engine.adopt(self.workspace)
            self._long = Side(self._engine.long_spec, engine)
        return self._long

    def workspace_size(self) -> int:
        """Bytes of workspace that the plan in force needs. Raises `NotPlannedError`."""
        return self._in_force().workspace_bytes

    def transforms_ahead(self) -> bool:
        """Whether runs of the plan in force transform each key once, ahead of attention, since many rows use it.

        On CUDA, where a variant has a `key_transform`, keys are of 16 bits, the wrapper has no maxima, and its spec
        is not batch-invariant. A graph that captures such a run does so for every batch, of as many keys as those of
        the batches planned before, or as `workspace.reserve` made room for; `plan` refuses more. Raises
        `NotPlannedError`.
        """
        return self._in_force().keys_bytes > 0

    def run(
        self,
        q,
        kv,
        *,
        out=None,
        lse=None,
        return_lse: bool = False,
        params: dict | None = None,
        k_scale=None,
        v_scale=None,
        kv_layout: str = "NHD",
    ):
        """Attention of the planned batch.

        Args:
            q: `[tokens, num_qo_heads, head_dim]` of the spec's dtype, any strides with the last one 1.
            kv: `(k, v)`, each `[pages, page_size, num_kv_heads, dim]` of the spec's kv_dtype, or one tensor
                `[pages, 2, page_size, num_kv_heads, head_dim]`; any strides with the last one 1. On CUDA each of the
                two spans at most 64 GiB.
            out: where to write `[tokens, num_qo_heads, head_dim_v]` of the spec's out_dtype (none: a new tensor).
                On CUDA it begins at a multiple of 8 bytes and has strides of such, `q`, `k` and `v` of 16.
            lse: float32 `[tokens, num_qo_heads]` to write the natural log-sum-exp to.
            return_lse: return `(out, lse)`.
            params: values of variant parameters for this run only; those that `kv_range` reads were frozen by `plan`.
            k_scale, v_scale: what cached values are multiplied with: a number, which a captured graph keeps, or
                float32 `[1]` or `[num_kv_heads]` on the device, which kernels read when they run.
            kv_layout: `"NHD"`, or `"HND"` where a page holds heads before slots.

        Returns:
            `out`, or `(out, lse)` with `return_lse`. Rows that see no key are 0, their LSE `-inf`.

        Raises:
            NotPlannedError: before any plan.
            RunError: tensors or parameters that do not match the plan, with both values. Nothing was written.
            IndexFormatError: page ids past the end of this cache. ParamError: wrong `params`.
        """
        if params is not None:
            _check_params(params)
        k, v = kv if type(kv) is tuple and len(kv) == 2 and kv_layout == "NHD" else cache_views(kv, kv_layout)
        if _is_compiling():
            return custom_op.call(self, q, k, v, out, lse, return_lse, params, k_scale, v_scale)
        self._enter()
        try:
            planned = self._in_force()
            if (return_lse or lse is not None) and not planned.use_softmax:
                raise RunError("these variants use no softmax, so there is no LSE: drop return_lse and lse")
            if out is None:
                shape = (planned.num_tokens, self.spec.num_qo_heads, self.spec.head_dim_v)
                out = self._engine.empty(shape, self._out_dtype)
            if lse is None and return_lse:
                lse = self._engine.empty((planned.num_tokens, self.spec.num_qo_heads), torch.float32)
            self._engine.require(q, k, v, out, lse)
            if _is_grad_enabled():
                _check_gradients(q, k, v, out)
            if self._byte_cache is not None:
                k, v = self._bytes("k", k), self._bytes("v", v)
            try:
                self._launch(planned, q, k, v, out, lse, params, k_scale, v_scale)
            except RunError as error:
                hint = layout_hint(k, v, planned.args.index.page_size, self.spec.num_kv_heads, kv_layout)
                if not hint:
                    raise
                raise RunError(f"{error}{hint}") from None
            return (out, lse) if return_lse else out
        finally:
            self._busy.release()

    def _launch(self, planned: Planned, q, k, v, out, lse, params, k_scale, v_scale) -> None:
        shape = k.shape
        if len(shape) == 4 and shape[0] < planned.enough_pages:
            planned.check_pages(shape[0])
        bound = planned.bound if params is None else planned.rebind(params)
        scales = _UNSCALED
        if k_scale is not None or v_scale is not None:
            heads = self.spec.num_kv_heads
            scales = tuple(
                scale_of(name, value, heads, self.device)
                for name, value in (("k_scale", k_scale), ("v_scale", v_scale))
            )
        planned.point_to(self.workspace, bound, scales)
        self._side.engine.launch(planned, q, k, v, out, lse)

    def _bytes(self, name: str, cache):
        if cache.dtype != self._byte_cache:
            raise RunError(
                f"{name} is {str(cache.dtype).removeprefix('torch.')}, but the spec says {self.spec.kv_dtype}"
            )
        return cache.view(torch.uint8)

    def _in_force(self) -> Planned:
        if self._plan is None:
            raise NotPlannedError("run and workspace_size need a plan: call plan(index) first")
        return self._plan

    def _enter(self) -> None:
        if not self._busy.acquire(False):
            raise RunError(f"{self!r} is in use by another thread: make a wrapper for each thread")

    def __reduce__(self):
        raise pickle.PicklingError(
            "an AttentionWrapper holds addresses of this process: pickle its spec and make a wrapper there"
        )

    def __repr__(self) -> str:
        return f"AttentionWrapper({self.name!r}, {self.spec!r}, device={str(self.device)!r})"


def _check_params(params) -> None:
    if not isinstance(params, Mapping):
        raise ParamError(f"params must be a mapping such as {{'soft_cap.cap': 50.0}}, got {params!r}")


def _check_gradients(q, k, v, out) -> None:
    if q.requires_grad or k.requires_grad or v.requires_grad:
        raise RunError("attnloom computes no gradients: call run under torch.no_grad(), or detach q, k and v")
    if out.requires_grad:
        raise RunError(
            f"out of shape {list(out.shape)} requires a gradient, and attnloom computes none: "
            "call run under torch.no_grad(), or pass out.detach()"
        )


def _check_lengths(kv_lens, index: ComposedIndex, device) -> None:
    fits = isinstance(kv_lens, torch.Tensor) and kv_lens.dtype == torch.int32 and kv_lens.device == device
    if not fits or tuple(kv_lens.shape) != (index.num_requests,) or not kv_lens.is_contiguous():
        shown = f"{kv_lens.dtype} {list(kv_lens.shape)} on {kv_lens.device}" if hasattr(kv_lens, "dtype") else kv_lens
        raise PlanError(f"kv_lens is {shown}; it must be a contiguous int32 tensor [{index.num_requests}] on {device}")
