"""nvcc and its flags: found without starting a process, probed only when something is compiled.

It is looked for in `CUDA_HOME`, on PATH, and among Python packages (`pip install "attnloom[cuda]"`), in this order.
Host code and the link go through the C++ compiler of `host_toolchain`; the CUDA runtime is linked in, so that a built
library needs the driver alone.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from attrs import field, frozen

from attnloom.errors import CompileError, UnsupportedError
from attnloom.jit.resources import read_resources
from attnloom.jit.toolchain import Toolchain, find_compiler, hash_program

FLOOR = (12, 4)
"""The oldest CUDA that builds the kernels."""

OLDEST_ARCH = (8, 0)
"""The oldest compute capability that the kernels run on (Ampere: cp.async, ldmatrix, bf16 mma)."""

_COMMON = (
    "-std=c++20",
    "-Xcompiler=-fPIC",
    "-Xcompiler=-fvisibility=hidden",
    "--expt-relaxed-constexpr",
    "-prec-div=false",  # 2 ulp and no branch: a soft cap divides every logit
    "-prec-sqrt=false",
    "-Xptxas=-v",
)
_RELEASE = ("-O3",)
_DEBUG = ("-O3", "-lineinfo", "-DATTNLOOM_DEBUG")
_INSTALL = 'pip install "attnloom[cuda]", or install a CUDA toolkit of 12.4 or newer and set CUDA_HOME to its folder'
_EDG_ERROR = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?P<kind>catastrophic error|error|warning)[^:]*: ", re.MULTILINE
)


@frozen(cache_hash=True)
class CudaToolchain(Toolchain):
    """nvcc for one architecture.

    Attributes:
        arch: what it generates code for, such as `"sm_90a"`; also `isa`.
        linker: the command of the C++ compiler, which links.
    """

    arch: str = field(default="", kw_only=True)
    linker: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def link_command(self) -> tuple[str, ...]:
        """The C++ compiler: nothing is left for nvcc to link."""
        return self.linker

    def probe(self) -> str:
        """The compiler's version, such as `"nvcc 13.0.88"`. Starts processes.

        Raises `CompileError` where it does not run, is older than `FLOOR` or is pieced together from several versions,
        and `UnsupportedError` where it does not know the architecture.
        """
        return _probe(self.command[0], self.arch)

    def path_flags(self, work: str, place: str) -> tuple[str, ...]:
        """Let messages and debug information name `place` where the build happens in `work`."""
        return (f"-Xcompiler=-ffile-prefix-map={work}={place}",)

    def messages(self, log: str) -> str:
        """`log` with nvcc's `file(line): error:` written as other compilers do."""
        return _EDG_ERROR.sub(lambda m: f"{m['file']}:{m['line']}: {m['kind'].split()[-1]}: ", log)

    def resources(self, log: str) -> list[dict]:
        """What ptxas tells of each kernel: see `read_resources`."""
        return read_resources(log)


def cuda_toolchain(arch: str, debug: bool = False) -> CudaToolchain:
    """The toolchain for `arch`; remembered until `CUDA_HOME`, `PATH` or `CXX` change.

    Args:
        arch: such as `"sm_80"`, as `arch_of` gives it.
        debug: line numbers and bounds-checked parameter tensors (`ATTNLOOM_DEBUG`).

    Raises `CompileError` where nvcc or the C++ compiler is missing, `UnsupportedError` for an architecture that is too
    old, or off Linux.
    """
    get = os.environ.get
    return _cuda_toolchain(arch, bool(debug), get("CUDA_HOME"), get("PATH"), get("CXX"))


@functools.lru_cache(maxsize=64)
def _cuda_toolchain(arch: str, debug: bool, home: str | None, path: str | None, cxx: str | None) -> CudaToolchain:
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f"attnloom compiles kernels on Linux only; this is {sys.platform}")
    number = check_arch(arch)
    nvcc = find_nvcc(home, path)
    host = find_compiler(cxx, path)
    compiler = next((word for word in host if re.search(r"(g\+\+|clang\+\+|c\+\+)[^/]*$", word)), host[-1])
    root = nvcc.parent.parent
    flags = (
        *_COMMON,
        *(_DEBUG if debug else _RELEASE),
        f"-gencode=arch=compute_{number},code=sm_{number}",
        f"-ccbin={compiler}",
    )
    link = ["-shared", "-Wl,-z,defs", *_library_folders(root), "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    identity = _identity(nvcc, compiler)
    return CudaToolchain((str(nvcc),), arch, flags, tuple(link), identity, arch=arch, linker=host)


def arch_of(major: int, minor: int) -> str:
    """The architecture of a compute capability, with what only that one has (`"sm_90a"`) where kernels use it.

    Raises `UnsupportedError` below `OLDEST_ARCH`.
    """
    if (major, minor) < OLDEST_ARCH:
        raise UnsupportedError(
            f"a device of compute capability {major}.{minor}: the CUDA kernels need {OLDEST_ARCH[0]}.{OLDEST_ARCH[1]} "
            "(Ampere) or newer; use device='cpu'"
        )
    return f"sm_{major}{minor}a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def check_arch(arch: str) -> str:
    """The number in `arch` (`"90a"`). Raises `UnsupportedError` for another form, or one that is too old."""
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
    if match is None:
        raise UnsupportedError(f"architecture {arch!r} is not of the form sm_80, sm_89 or sm_90a")
    arch_of(int(match[1]), int(match[2]))
    return arch.removeprefix("sm_")


def find_nvcc(home: str | None, path: str | None) -> Path:
    """The path of nvcc itself (of what it starts, where PATH holds a script). Raises `CompileError`."""
    if home and home.strip():
        found = Path(home, "bin", "nvcc")
        if not os.access(found, os.X_OK):
            raise CompileError(f"CUDA_HOME is {home!r}, but {found} is no program: correct or unset CUDA_HOME")
        return _behind_script(found)
    if found := shutil.which("nvcc", path=path):
        return _behind_script(Path(found))
    for folder in packaged_toolkits():
        if os.access(folder / "bin" / "nvcc", os.X_OK):
            return folder / "bin" / "nvcc"
    raise CompileError(
        "no CUDA compiler was found: looked for bin/nvcc in CUDA_HOME (not set), for nvcc on PATH "
        f"({path or 'empty'}) and for the Python package nvidia-cuda-nvcc. {_INSTALL}."
    )


def packaged_toolkits() -> list[Path]:
    """The folders `nvidia/cu*` of installed Python packages, newest first; they need not hold a compiler."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folders = {folder for place in places for folder in Path(place).glob("cu[0-9]*") if folder.is_dir()}
    return sorted(folders, key=lambda folder: int(re.sub(r"\D", "", folder.name) or 0), reverse=True)


def _behind_script(program: Path) -> Path:
    """nvcc is often a script or a link that starts the toolkit's own: that one's folder holds the libraries."""
    with open(program, "rb") as file:
        head = file.read(4096)
    if head.startswith(b"#!"):
        for text in re.findall(rb"(/[^\s\"']+/nvcc)\b", head):
            behind = Path(os.fsdecode(text))
            if behind != program and os.access(behind, os.X_OK):
                return behind
    return Path(os.path.realpath(program))


def _library_folders(root: Path) -> list[str]:
    """`-L` for where the static CUDA runtime lies; nothing where the linker finds it by itself."""
    places = [root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))]
    return [f"-L{place}" for place in places if (place / "libcudart_static.a").is_file()][:1]


def _identity(nvcc: Path, host: str) -> str:
    """A hash that changes with the compiler: nvcc, its parts, the host compiler."""
    digest = hashlib.sha256()
    root = nvcc.parent.parent
    parts = [nvcc, root / "bin" / "ptxas", root / "bin" / "cudafe++", root / "nvvm" / "bin" / "cicc"]
    for part in [*parts, Path(host), root / "include" / "cuda.h"]:
        if part.is_file():
            hash_program(digest, str(part))
    return digest.hexdigest()


@functools.lru_cache(maxsize=64)
def _probe(nvcc: str, arch: str) -> str:
    told = _ask(nvcc, "--version")
    match = re.search(r"release (\d+)\.(\d+), V([\d.]+)", told)
    if match is None:
        raise CompileError(f"{nvcc} does not say which CUDA it is of: {told.strip()[-200:] or 'no output'}")
    version = int(match[1]), int(match[2])
    if version < FLOOR:
        floor = ".".join(map(str, FLOOR))
        raise CompileError(f"{nvcc} is of CUDA {match[1]}.{match[2]}, but CUDA >= {floor} is needed. {_INSTALL}.")
    _check_pieces(nvcc, version)
    known = _ask(nvcc, "--list-gpu-code").split()
    if known and arch not in known and arch.rstrip("af") not in known:
        raise UnsupportedError(
            f"nvcc {match[3]} does not know {arch} (it knows {known[0]} to {known[-1]}): install a newer CUDA"
        )
    return f"nvcc {match[3]}"


def _check_pieces(nvcc: str, version: tuple[int, int]) -> None:
    """pip lets the parts of a toolkit differ, and a newer front end writes what an older ptxas cannot read."""
    wanted = ".".join(map(str, version))
    for part, package in (("bin/ptxas", "nvidia-cuda-nvcc"), ("nvvm/bin/cicc", "nvidia-nvvm")):
        program = Path(nvcc).parent.parent / part
        if not program.is_file():
            continue
        match = re.search(r"(?:release |V)(\d+)\.(\d+)", _ask(str(program), "--version"))
        if match and (int(match[1]), int(match[2])) != version:
            raise CompileError(
                f"{nvcc} is of CUDA {wanted}, but {program} of {match[1]}.{match[2]}: install equal versions, such as "
                f"pip install 'nvidia-cuda-nvcc=={wanted}.*' '{package}=={wanted}.*' 'nvidia-cuda-crt=={wanted}.*'"
            )


def _ask(program: str, option: str) -> str:
    try:
        done = subprocess.run([program, option], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        raise CompileError(f"the CUDA compiler {program} does not start: {error.strerror}") from error
    return done.stdout
