"""Plan a batch once, run it for every layer."""

from __future__ import annotations

import itertools
import pickle
import threading

import torch

from attnloom import custom_op, fork
from attnloom.cache import cache_views
from attnloom.dtypes import torch_dtype
from attnloom.errors import NotPlannedError, PlanError, RunError, UnsupportedError
from attnloom.index import ComposedIndex
from attnloom.kernel import host_kernel
from attnloom.limits import Limits
from attnloom.planned import Planned
from attnloom.scales import Scale
from attnloom.spec import AttentionSpec
from attnloom.workspace import Workspace

_numbers = itertools.count()


class AttentionWrapper:
    """One compiled attention computation on one device.

    `plan(index)` inspects a batch on the host; `run(q, kv)` computes it, any number of times (a step's plan serves
    every layer that shares a spec). A wrapper belongs to one thread; specs, plugins and compiled kernels may be shared.

    Args:
        spec: what to compute.
        device: `"cpu"`.
        max_requests, max_tokens, max_qo_len, max_kv_len, max_pages, max_levels: what a plan may hold at most
            (none: no bound); `max_pages` counts entries of a level's page lists. A larger batch raises in `plan`.
        num_threads: OpenMP threads of `run` (none: `torch.get_num_threads()`).
        num_workers: queues the plan is cut into (none: one a thread). The number may change rounding, nothing else.
        workspace: memory for partial states, to share between wrappers that run one after the other.
        name: what `torch.ops.attnloom.run` knows it by (none: a new one).

    Raises:
        UnsupportedError: a device that no installed kernel family serves.
        Others as `attnloom.kernel.host_kernel`: composing and compiling happen here.
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
        _check_device(device)
        self.spec = spec
        self.device = torch.device("cpu")
        self.limits = Limits(max_requests, max_tokens, max_qo_len, max_kv_len, max_pages, max_levels)
        self._limited = self.limits.any
        self.num_threads = _positive("num_threads", num_threads, torch.get_num_threads())
        self.num_workers = _positive("num_workers", num_workers, self.num_threads)
        self.workspace = Workspace() if workspace is None else workspace
        self.name = f"attention_{next(_numbers)}" if name is None else name
        self.kernel = host_kernel(spec, max_qo_len=max_qo_len, max_kv_len=max_kv_len)
        self._out_dtype = torch_dtype(spec.out_dtype)
        self._byte_cache = torch_dtype(spec.kv_dtype) if spec.kv_dtype.startswith("float8") else None
        self._plan: Planned | None = None
        self._spare = Planned(spec, self.kernel, self.num_workers)
        self._k_scale, self._v_scale = Scale("k", spec.num_kv_heads), Scale("v", spec.num_kv_heads)
        self._busy = threading.Lock()
        custom_op.register(self)

    def plan(self, index: ComposedIndex, *, params: dict | None = None) -> None:
        """Inspect a batch; later runs compute it.

        Args:
            index: the batch, from a storage format. It is read again by each run: leave its arrays as they are.
            params: values of variant parameters over the spec's, in force until the next plan.

        Raises:
            IndexFormatError: the index contradicts itself.
            PlanError: it is larger than the declared maxima or made for other heads. ParamError: wrong `params`.
                The plan in force before stays in force.
        """
        with self._alone():
            index.ensure_valid()
            if self._limited:
                self.limits.check(index)
            planned = self._spare
            planned.bind(self.spec.params if params is None else {**self.spec.params, **params})
            planned.plan(index)
            self.workspace.reserve(planned.workspace_bytes)
            self._spare = self._plan or Planned(self.spec, self.kernel, self.num_workers)
            self._plan = planned

    def workspace_size(self) -> int:
        """Bytes of workspace that the plan in force needs. Raises `NotPlannedError`."""
        return self._in_force().workspace_bytes

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
                `[pages, 2, page_size, num_kv_heads, head_dim]`; any strides with the last one 1.
            out: where to write `[tokens, num_qo_heads, head_dim_v]` of the spec's out_dtype (none: a new tensor).
            lse: float32 `[tokens, num_qo_heads]` to write the natural log-sum-exp to.
            return_lse: return `(out, lse)`.
            params: values of variant parameters for this run only; those that `kv_range` reads were frozen by `plan`.
            k_scale, v_scale: what cached values are multiplied with: a number, or float32 `[1]` or `[num_kv_heads]`.
            kv_layout: `"NHD"`, or `"HND"` where a page holds heads before slots.

        Returns:
            `out`, or `(out, lse)` with `return_lse`. Rows that see no key are 0, their LSE `-inf`.

        Raises:
            NotPlannedError: before any plan.
            RunError: tensors or parameters that do not match the plan, with both values. Nothing was written.
            IndexFormatError: page ids past the end of this cache. ParamError: wrong `params`.
        """
        k, v = kv if type(kv) is tuple and len(kv) == 2 and kv_layout == "NHD" else cache_views(kv, kv_layout)
        if torch.compiler.is_compiling():
            return custom_op.call(self, q, k, v, out, lse, return_lse, params, k_scale, v_scale)
        with self._alone():
            planned = self._in_force()
            if (return_lse or lse is not None) and not planned.use_softmax:
                raise RunError("these variants use no softmax, so there is no LSE: drop return_lse and lse")
            _check_tensors(q=q, k=k, v=v, out=q if out is None else out, lse=q if lse is None else lse)
            _check_gradients(q, k, v)
            if self._byte_cache is not None:
                k, v = self._bytes("k", k), self._bytes("v", v)
            shape = (planned.num_tokens, self.spec.num_qo_heads)
            if out is None:
                out = torch.empty((*shape, self.spec.head_dim_v), dtype=self._out_dtype)
            if return_lse and lse is None:
                lse = torch.empty(shape, dtype=torch.float32)
            self._launch(planned, q, k, v, out, lse, params, k_scale, v_scale)
            return (out, lse) if return_lse else out

    def _launch(self, planned: Planned, q, k, v, out, lse, params, k_scale, v_scale) -> None:
        args = planned.args
        if k.dim() == v.dim() == 4 and k.shape[0] == v.shape[0]:
            planned.check_pages(k.shape[0])
        args.num_threads = fork.threads(self.num_threads)
        planned.use(self.workspace)
        bound = planned.bound if params is None else planned.rebind(params)
        args.params = bound.address
        args.k_scale, args.k_scale_stride = (0, 0) if k_scale is None else self._k_scale.place(k_scale)
        args.v_scale, args.v_scale_stride = (0, 0) if v_scale is None else self._v_scale.place(v_scale)
        self.kernel.run(planned.args_address, q, k, v, out, lse)
        if args.num_threads != 1:
            fork.note_team()

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

    def _alone(self):
        if self._busy.locked():
            raise RunError(f"{self!r} is in use by another thread: make a wrapper for each thread")
        return self._busy

    def __reduce__(self):
        raise pickle.PicklingError(
            "an AttentionWrapper holds addresses of this process: pickle its spec and make a wrapper there"
        )

    def __repr__(self) -> str:
        return f"AttentionWrapper({self.name!r}, {self.spec!r}, device='cpu')"


def _check_device(device) -> None:
    kind = getattr(device, "type", None) or str(device).partition(":")[0]
    if kind == "cuda":
        raise UnsupportedError("device 'cuda': no installed kernel family runs on CUDA devices yet; use device='cpu'")
    if kind != "cpu":
        raise UnsupportedError(f"device {str(device)!r}: kernels run on 'cpu'")


def _check_tensors(**tensors) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise RunError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
        if not tensor.is_cpu:
            raise RunError(f"{name} is on {tensor.device}, the wrapper on cpu: move it with .cpu()")


def _check_gradients(*tensors) -> None:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RunError("attnloom computes no gradients: call run under torch.no_grad(), or detach q, k and v")


def _positive(name: str, value: int | None, default: int) -> int:
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{name} must be an integer of at least 1, got {value!r}")
    return value
