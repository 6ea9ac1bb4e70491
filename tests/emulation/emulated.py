"""CUDA kernels compiled for this CPU, and an engine that runs them behind an `AttentionWrapper`."""

from __future__ import annotations

import ctypes
import functools
import subprocess
from pathlib import Path

import numpy as np
import torch
from attnloom import jit
from attnloom.engines.keys_ahead import KeysAhead, can_go_ahead
from attnloom.kernel import describe
from attnloom.targets import CudaTarget
from attnloom.workspace import Workspace
from emulation.ptx import translate

_HERE = Path(__file__).parent
_FLAGS = ("-O1", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")


class EmulatedKernel:
    """A kernel of a spec: what `AttentionWrapper` knows of one, and the loaded library."""

    def __init__(self, spec, arch, limits, headers):
        self.composition, self.tiles, unit = describe(spec, CudaTarget(arch), limits)
        self.library = open_library(unit, arch, headers)
        self.ranges = 0
        if self.composition.has_range:
            self.ranges = ctypes.cast(self.library.attnloom_ranges, ctypes.c_void_p).value


@functools.cache
def open_library(unit, arch, headers=()):
    """The kernel of `unit` for this CPU, compiled or found in the cache; `headers` are looked at before its own."""
    library = ctypes.CDLL(str(jit.build(_host_unit(unit, arch, headers)).path))
    library.attnloom_run.argtypes = ctypes.c_void_p, ctypes.c_void_p
    library.attnloom_error.restype = ctypes.c_char_p
    library.emulation_prepare.argtypes = ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    return library


def _host_unit(unit, arch, headers):
    """What is compiled for this CPU in place of `unit`, of CUDA C++ for `arch`."""
    number = "".join(filter(str.isdigit, arch))
    command = [*jit.host_toolchain().command, "-std=c++20", "-E", "-P", "-x", "c++", "-"]
    command += ["-D__CUDACC__", f"-D__CUDA_ARCH__={number}0", "-include", "cuda_runtime.h"]
    command += [f"-I{folder}" for folder in (_HERE / "include", *headers, *unit.include_dirs)]
    ((_, text),) = unit.sources
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return jit.CompileUnit(
        name=f"emulated_{unit.name}"[:100], kind="test", sources={"kernel.cpp": translate(done.stdout)}, flags=_FLAGS
    )


class EmulationEngine:
    """See `attnloom.engines`. The device is this CPU; plans and indices are read where they lie.

    Attributes:
        seed: of the order in which blocks, warps and lanes take turns.
        ignored: an instruction that does nothing, or none.
        goes_ahead: whether plans transform their keys ahead.
    """

    device = torch.device("cpu")
    reads_param_tensors = False
    keeps_addresses = False
    long_spec = None  # kernels are named
    workers_per_processor = 1
    spare_rows = False

    def __init__(self, spec, limits, *, arch: str, num_workers: int, headers=()):
        self.num_workers = num_workers
        self.kernel = EmulatedKernel(spec, arch, limits, headers)
        self.seed, self.ignored, self.goes_ahead = 0, None, False

    def new_workspace(self):
        return Workspace()

    def adopt(self, workspace):
        pass

    def before_plan(self):
        pass

    def seat(self, planned, workspace, kv_lens=None):
        if self.goes_ahead:
            assert can_go_ahead(planned._spec, self.kernel)
            planned.transform_ahead(KeysAhead(planned))
        workspace.reserve(planned.workspace_bytes)
        self._workspace = workspace
        plan = planned.view.to_bytes()
        self._plan = _aligned(plan)
        self._index = _aligned(
            ctypes.string_at(ctypes.addressof(planned.args.index), ctypes.sizeof(planned.args.index))
        )
        args = planned.args
        args.plan, args.device_index = self._plan.ctypes.data, self._index.ctypes.data
        args.num_workers = self.num_workers
        args.merge_pass = int(planned.view.num_merge > 0 and not planned.view.decode().fused_merge)

    def require(self, q, k, v, out, lse):
        pass

    def empty(self, shape, dtype):
        return torch.empty(shape, dtype=dtype)

    def launch(self, planned, q, k, v, out, lse):
        args, library = planned.args, self.kernel.library
        for view, tensor in ((args.q, q), (args.out, out)):
            view.data = tensor.data_ptr()
            view.stride_token, view.stride_head = tensor.stride()[:2]
        for view, tensor in ((args.k, k), (args.v, v)):
            view.data = tensor.data_ptr()
            view.stride_page, view.stride_slot, view.stride_head = tensor.stride()[:3]
        args.num_pages, args.q_tokens = k.shape[0], q.shape[0]
        args.lse, args.lse_stride_token = (None, 0) if lse is None else (lse.data_ptr(), lse.stride(0))
        regions = [(*_region(tensor), False) for tensor in (q, k, v)]
        regions += [(array.ctypes.data, array.nbytes, False) for array in (self._plan, self._index)]
        regions.append((self._workspace.address, planned.workspace_bytes, True))
        allowed = np.array(regions, np.uint64)
        library.emulation_prepare(self.seed, allowed.ctypes.data, len(allowed), self.ignored)
        if status := library.attnloom_run(planned.args_address, None):
            raise RuntimeError(library.attnloom_error(status).decode())


def _aligned(data: bytes):
    """A copy at a multiple of 64 bytes, as a device's memory begins."""
    room = np.zeros(len(data) + 64, np.uint8)
    begin = -room.ctypes.data % 64
    room[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
    return room[begin : begin + len(data)]


def _region(tensor):
    """Where a tensor lies and how many bytes it reaches over."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), max(reach, 0) * tensor.element_size() if tensor.numel() else 0
