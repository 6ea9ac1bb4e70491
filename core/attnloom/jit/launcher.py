"""The launcher: the tvm-ffi module between tensors and compiled kernels, and the handle of one loaded kernel."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import attnloom
from attnloom.errors import CompileError, RunError
from attnloom.jit import shipped
from attnloom.jit.builder import OnCompiled, OnStart, build, build_all
from attnloom.jit.toolchain import Toolchain, host_toolchain
from attnloom.jit.unit import Artifact, CompileUnit

_PACKAGE = Path(attnloom.__file__).parent
CORE_INCLUDE = _PACKAGE / "include"
"""The include folder of the core's own headers."""

_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """Another thread of the parent may have held the lock, and is not here to release it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def scheduler_folder() -> Path:
    """The folder of the package `attnloom_scheduler`: `include/` and `src/` are in it."""
    import attnloom_scheduler

    return Path(attnloom_scheduler.__file__).parent


def include_dirs() -> tuple[str, ...]:
    """The include folders of every kernel: the core's and the scheduler's."""
    return str(CORE_INCLUDE), str(scheduler_folder() / "include")


@functools.cache
def binding_unit() -> CompileUnit:
    """The unit of the launcher."""
    import tvm_ffi

    package = Path(tvm_ffi.__file__).parent
    headers = [package / "include" / name for name in ("tvm/ffi/c_api.h", "dlpack/dlpack.h")]
    library = package / "lib"
    if not all(header.is_file() for header in headers) or not (library / "libtvm_ffi.so").is_file():
        from tvm_ffi import libinfo

        include, dlpack = Path(libinfo.find_include_path()), Path(libinfo.find_dlpack_include_path())
        headers = [include / "tvm/ffi/c_api.h", dlpack / "dlpack/dlpack.h"]
        library = Path(libinfo.find_libtvm_ffi()).parent
    folders = dict.fromkeys((str(headers[0].parents[2]), str(headers[1].parents[1])))
    return CompileUnit(
        name="binding",
        kind="binding",
        sources={path.name: path.read_text(encoding="utf-8") for path in sorted((_PACKAGE / "csrc").glob("*.cc"))},
        include_dirs=[CORE_INCLUDE, scheduler_folder() / "include", _PACKAGE / "csrc"],
        system_include_dirs=folders,
        salt=" ".join(hashlib.sha256(header.read_bytes()).hexdigest() for header in headers),
        link_flags=[f"-L{library}", f"-Wl,-rpath,{library}", "-ltvm_ffi", "-ldl"],
    )


@functools.cache
def scheduler_unit() -> CompileUnit:
    """The unit of the planner: all of `attnloom_scheduler/src/*.cpp`."""
    folder = scheduler_folder()
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted((folder / "src").glob("*.cpp"))}
    if not sources:
        raise CompileError(f"{folder / 'src'} holds no .cpp file: the installation of attnloom is incomplete")
    return CompileUnit(
        name="scheduler",
        kind="scheduler",
        sources=sources,
        include_dirs=[CORE_INCLUDE, folder / "include", folder / "src"],
    )


def scheduler_library() -> Path:
    """The path of the planner's library, built on first use."""
    return (shipped.find(scheduler_unit()) or build(scheduler_unit())).path


@functools.cache
def _binding_path() -> str:
    return str((shipped.find(binding_unit()) or build(binding_unit())).path)


@functools.cache
def _binding():
    import tvm_ffi

    return tvm_ffi.load_module(_binding_path())


def binding():
    """The launcher's tvm-ffi module, built on first use and loaded once: `open_kernel`, `kernel_symbol` and `run`."""
    with _lock:
        return _binding()


@functools.cache
def view_index():
    """The launcher's `attnloom_view_index(arrays, page_size, view_address, bytes_address)`; see csrc/view_index.cc."""
    with _lock:
        function = ctypes.PyDLL(_binding_path()).attnloom_view_index
    function.argtypes = (ctypes.py_object, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    function.restype = ctypes.c_int
    return function


class KernelHandle:
    """A loaded kernel library.

    Attributes:
        path: of the library.
        handle: the launcher's number for it.
    """

    __slots__ = ("_run", "handle", "path")

    def __init__(self, path: str | os.PathLike) -> None:
        module = binding()
        self.path = Path(path)
        try:
            self.handle = int(module.open_kernel(os.fspath(path)))
        except RuntimeError as error:
            raise CompileError(
                f"{_first_line(error)}. Call `attnloom.jit.clear()` or `attnloom cache clear` to rebuild it."
            ) from None
        self._run = module.run

    def symbol(self, name: str) -> int:
        """The address of an exported function, 0 if there is none."""
        return int(binding().kernel_symbol(self.handle, name))

    def device_workers(self, device: int) -> int:
        """How many workers of a CUDA kernel the device of that index holds at a time. Raises `RuntimeError` of CUDA."""
        return int(binding().device_workers(self.handle, device))

    def run(self, args_address: int, q, k, v, out, lse=None, stream: int = 0) -> int:
        """Check the tensors against the `RunArgs` at `args_address`, fill its views and run the kernel.

        Args:
            args_address: address of a `RunArgs` whose expected fields, index, plan and workspace are set.
            q: `[tokens, qo_heads, head_dim]`.
            k, v: `[pages, page_size, kv_heads, head_dim]` and `[..., head_dim_v]`; a float8 cache may come as uint8.
            out: `[tokens, qo_heads, head_dim_v]`, written.
            lse: float32 `[tokens, qo_heads]`, written, or none.
            stream: a CUDA kernel's stream; a host kernel has none.

        Returns:
            1 where the stream is being captured, so that a graph holds the run; 0 where it runs now.

        All on the kernel's device, of any strides with the last 1. The GIL is released meanwhile. Raises `RunError`
        with both values before anything is written.
        """
        try:
            return self._run(self.handle, args_address, q, k, v, out, lse, stream)
        except ValueError as error:
            raise RunError(_first_line(error)) from None


def load(artifact: Artifact) -> KernelHandle:
    """Load a kernel. A debug build (sanitizers) raises `UnsupportedError` where the process cannot hold it."""
    if artifact.debug:
        host_toolchain(debug=True).require_loadable()
    return KernelHandle(artifact.path)


def prepare(
    units: Iterable[CompileUnit] = (),
    toolchain: Toolchain | None = None,
    *,
    on_start: OnStart | None = None,
    on_compiled: OnCompiled | None = None,
) -> list[Artifact]:
    """Build `units` (with `toolchain`), the launcher and the scheduler at a time; returns the artifacts of `units`.

    The callbacks are `build`'s; they may come from other threads.
    """
    callbacks = {"on_start": on_start, "on_compiled": on_compiled}
    own = [(unit, None) for unit in (binding_unit(), scheduler_unit()) if shipped.find(unit) is None]
    wanted = [*((unit, toolchain) for unit in units), *own]
    return build_all(wanted, **callbacks)[: len(wanted) - len(own)]


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
