"""Where a wrapper's kernel runs: its buffers, how a plan travels to it, and how it is launched.

A wrapper knows nothing of devices; an engine of one (`host`, `cuda`) answers to the same few names:

    device, kernel, num_workers           what a plan is made for
    workers_per_processor                 those that share what their processor reads
    reads_param_tensors                   whether the planner can read tensors that parameters hold
    keeps_addresses                       whether buffers stay where they are from plan to plan
    spare_rows                            whether tensors of a run may have more rows than are planned
    new_workspace(), adopt(workspace)     memory for partial states, and which to use
    before_plan()                         raises where nothing may be planned now
    seat(planned, workspace, kv_lens)     reserve what a plan needs and put it where the kernel reads it
    require(q, k, v, out, lse)            raises for tensors that the kernel cannot take
    empty(shape, dtype)                   a new output
    launch(planned, q, k, v, out, lse)    run it
"""

from __future__ import annotations

import torch

from attnloom.errors import UnsupportedError
from attnloom.targets import target_of

MOST_WORKERS = 65535


def open_engine(device, spec, limits, *, num_threads: int | None, num_workers: int | None):
    """The engine of `device` for `spec`: opens or compiles the kernel.

    Raises:
        UnsupportedError: a device that is not there or that no kernel runs on.
        PlanError: `num_threads` or `num_workers` that cannot be. Others as `attnloom.kernel.open_kernel`.
    """
    device = device_of(device)
    target = target_of(device)
    if device.type == "cpu":
        from attnloom.engines.host import HostEngine

        return HostEngine(target, spec, limits, num_threads=num_threads, num_workers=num_workers)
    from attnloom.engines.cuda import CudaEngine

    return CudaEngine(target, device, spec, limits, num_threads=num_threads, num_workers=num_workers)


def device_of(device) -> torch.device:
    """The device that a user names. Raises `UnsupportedError` for what is none of torch's."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UnsupportedError(f"device {device!r}: kernels run on 'cpu' and on 'cuda'") from error


def positive(name: str, value: int | None, default: int) -> int:
    """`value`, or `default` for none. Raises `PlanError` unless it is an integer from 1 to 65,535, as queues are."""
    from attnloom.errors import PlanError

    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{name} must be an integer of at least 1, got {value!r}")
    if value > MOST_WORKERS:
        raise PlanError(f"{name} must be at most {MOST_WORKERS}, got {value}")
    return value
