"""Kernels on this machine's CPU: the plan is read where the planner left it."""

from __future__ import annotations

import torch

from attnloom import fork
from attnloom.engines import positive
from attnloom.errors import PlanError, RunError, UnsupportedError
from attnloom.kernel import open_kernel
from attnloom.workspace import Workspace


class HostEngine:
    """See `attnloom.engines`. OpenMP threads take the plan's queues in turn."""

    device = torch.device("cpu")
    workers_per_processor = 1
    reads_param_tensors = True
    long_spec = None  # one kernel for all batches
    keeps_addresses = False
    spare_rows = False

    def __init__(self, target, spec, limits, *, num_threads: int | None, num_workers: int | None):
        self.num_threads = positive("num_threads", num_threads, torch.get_num_threads())
        self.num_workers = positive("num_workers", num_workers, self.num_threads)
        self.kernel = open_kernel(spec, target, limits)

    def new_workspace(self) -> Workspace:
        """Memory for partial states, empty."""
        return Workspace()

    def adopt(self, workspace: Workspace) -> None:
        """Take a workspace. Raises `PlanError` for one of another device."""
        if str(workspace.device) != "cpu":
            raise PlanError(f"the workspace is on {workspace.device}, the wrapper on cpu: use Workspace()")

    def before_plan(self) -> None:
        """Planning never disturbs a host kernel."""

    def seat(self, planned, workspace: Workspace, kv_lens=None) -> None:
        """Reserve the workspace of a plan. Raises `MemoryError`, and `UnsupportedError` for device lengths."""
        if kv_lens is not None:
            raise UnsupportedError("kv_lens= is of CUDA wrappers; on the cpu build the index from the true lengths")
        workspace.reserve(planned.workspace_bytes)
        planned.args.plan = planned.view.address

    def require(self, q, k, v, out, lse) -> None:
        """Raises `RunError` unless all are strided torch tensors on the host; `lse` may be none."""
        for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out), ("lse", out if lse is None else lse)):
            if not isinstance(tensor, torch.Tensor):
                raise RunError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
            if not tensor.is_cpu:
                raise RunError(f"{name} is on {tensor.device}, the wrapper on cpu: move it with .cpu()")
            if tensor.layout is not torch.strided:
                raise RunError(f"{name} has layout {tensor.layout}, kernels read torch.strided: use .to_dense()")

    def empty(self, shape, dtype):
        """A new tensor of `shape` and of a torch dtype on the host, its values whatever they are."""
        return torch.empty(shape, dtype=dtype)

    def launch(self, planned, q, k, v, out, lse) -> None:
        """Run the kernel; returns when it is done. Raises `RunError` before anything is written."""
        args = planned.args
        args.num_threads = fork.threads(self.num_threads)
        self.kernel.run(planned.args_address, q, k, v, out, lse)
        if args.num_threads != 1:
            fork.note_team()
