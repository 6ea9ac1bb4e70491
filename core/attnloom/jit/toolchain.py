"""The host compiler and its flags: found without starting a process, probed only when something is compiled.

Linux only. The compiler is the first of the environment's `CXX`, `g++` and `clang++`; the instruction set is picked at
run time from the CPU and may be lowered with `ATTNLOOM_HOST_ISA`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys

from attrs import field, frozen

from attnloom.errors import CompileError, ConfigError, UnsupportedError

FLOORS = {"gcc": (11,), "clang": (14,)}
"""The oldest compilers that build attnloom, by family."""

_COMMON = (
    "-std=c++20",
    "-fPIC",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ftemplate-backtrace-limit=0",
    "-fdiagnostics-color=never",
)
_RELEASE = ("-O3",)
_DEBUG = (
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-DATTNLOOM_DEBUG",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)
_INSTALL = "Install one (Debian/Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: conda install gxx)"

X86_LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4+avx512bf16")
"""The instruction sets of x86 in rising order; each includes those before it."""

_X86_NEEDS = (
    frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    frozenset({"avx512_bf16"}),
)
_LAUNCHERS = ("ccache", "sccache", "distcc")


@frozen(cache_hash=True)
class Toolchain:
    """A compiler command and the flags every unit is built with.

    Attributes:
        command: the words that start the compiler (`CXX` may hold a launcher and options).
        isa: one of `X86_LEVELS`, `"native"` or, where neither applies, `"generic"`.
        flags: flags of compiling; `link_flags` those of linking.
        identity: a hash of the compiler's path and binary, part of every cache key.
        debug: whether sanitizers are built in.
    """

    command: tuple[str, ...]
    isa: str
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    identity: str = field(repr=False)
    debug: bool = False

    def probe(self) -> str:
        """The compiler's version line, such as `"gcc 12.2.0"`. Starts a process.

        Raises `CompileError` where it does not run, or is older than `FLOORS`.
        """
        return _probe(self.command)

    @property
    def link_command(self) -> tuple[str, ...]:
        """The words that start the linker."""
        return self.command

    def path_flags(self, work: str, place: str) -> tuple[str, ...]:
        """Let messages and debug information name `place` where the build happens in `work`."""
        return (f"-ffile-prefix-map={work}={place}",)

    def messages(self, log: str) -> str:
        """`log` in the form that `diagnostics` reads."""
        return log

    def resources(self, log: str) -> list[dict]:
        """What the compiler tells in `log` of each device kernel; none on the host."""
        return []

    def require_loadable(self) -> None:
        """Raise `UnsupportedError` where this process cannot load what a debug toolchain builds."""
        if not self.debug or _has_symbol("__asan_init"):
            return
        compiler = shlex.join(self.command)
        library = f"libclang_rt.asan-{platform.machine()}.so" if _is_clang(self.command) else "libasan.so"
        preload = " ".join(f"$({compiler} -print-file-name={name})" for name in (library, "libstdc++.so"))
        raise UnsupportedError(
            "debug=True builds with AddressSanitizer, which must be loaded before Python starts. Run your command as\n"
            f'    LD_PRELOAD="{preload}" ASAN_OPTIONS=detect_leaks=0 {os.path.basename(sys.executable)} ...'
        )


def host_toolchain(debug: bool = False) -> Toolchain:
    """The toolchain of this host; remembered until `CXX`, `PATH` or `ATTNLOOM_HOST_ISA` change.

    Args:
        debug: AddressSanitizer, UBSan, `-O1 -g` and bounds-checked sites (`ATTNLOOM_DEBUG`).

    Raises `CompileError` where there is no compiler, `ConfigError` for an `ATTNLOOM_HOST_ISA` that is unknown,
    and `UnsupportedError` for one that this CPU cannot run, or off Linux.
    """
    get = os.environ.get
    return _host_toolchain(bool(debug), get("CXX"), get("PATH"), get("ATTNLOOM_HOST_ISA"))


@functools.lru_cache(maxsize=32)
def _host_toolchain(debug: bool, cxx: str | None, path: str | None, isa: str | None) -> Toolchain:
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f"attnloom compiles kernels on Linux only; this is {sys.platform}")
    command = find_compiler(cxx, path)
    isa = pick_isa(isa, platform.machine(), cpu_flags())
    flags = (*_COMMON, *(_DEBUG if debug else _RELEASE), *isa_flags(isa, platform.machine()))
    link = ["-shared", "-fopenmp"]
    if debug:
        link.append("-fsanitize=address,undefined")
        if _is_clang(command):
            link.append("-shared-libasan")
    else:
        link.append("-Wl,-z,defs")
    extra = " ".join(sorted(cpu_flags())) if isa == "native" else ""
    identity = hashlib.sha256(f"{compiler_identity(command, path)} {extra}".encode()).hexdigest()
    return Toolchain(command, isa, flags, tuple(link), identity, debug)


def find_compiler(cxx: str | None, path: str | None) -> tuple[str, ...]:
    """The command of the compiler: `cxx` if given, else the first of `g++` and `clang++` on `path`."""
    if cxx and cxx.strip():
        words = shlex.split(cxx)
        if found := shutil.which(words[0], path=path):
            return (found, *words[1:])
        raise CompileError(f"CXX is {cxx!r}, but {words[0]!r} is no program on PATH. {_INSTALL}, or correct CXX.")
    for name in ("g++", "clang++"):
        if found := shutil.which(name, path=path):
            return (found,)
    raise CompileError(
        "no C++ compiler was found: looked at the environment variable CXX (not set), then for g++ and clang++ on PATH "
        f"({path or 'empty'}). {_INSTALL} of GCC >= 11 or Clang >= 14, or set CXX to one."
    )


def compiler_identity(command: tuple[str, ...], path: str | None) -> str:
    """A hash that changes with the compiler: the words of its command, and size, head and tail of each program among
    them (the head of an ELF file holds its build id). Programs behind a `ccache`-like launcher count too."""
    digest = hashlib.sha256()
    for word in command:
        digest.update(word.encode() + b"\0")
        program = shutil.which(word, path=path)
        if program is None:
            continue
        hash_program(digest, program)
        if os.path.basename(os.path.realpath(program)) in _LAUNCHERS:
            for folder in (path or "").split(os.pathsep):
                behind = os.path.join(folder, os.path.basename(word))
                if os.path.isfile(behind):
                    hash_program(digest, behind)
    return digest.hexdigest()


def hash_program(digest, program: str, part: int = 1 << 20) -> None:
    """Add a program's real path, its size, head and tail to `digest`."""
    with open(program, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(f"{os.path.realpath(program)} {size}".encode())
        for start in {0, max(0, size - part)}:
            file.seek(start)
            digest.update(file.read(part))


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The features that Linux reports of the first CPU."""
    info = cpu_info()
    return frozenset((info.get("flags") or info.get("Features") or "").split())


@functools.cache
def cpu_info() -> dict[str, str]:
    """What Linux reports of the first CPU, by name."""
    info: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                info[name.strip()] = value.strip()
    except OSError:
        pass
    return info


def pick_isa(asked: str | None, machine: str, flags: frozenset[str]) -> str:
    """The instruction set to compile for: `asked`, checked against the CPU, or the best that it has."""
    if machine not in ("x86_64", "AMD64"):
        if asked not in (None, "", "native", "generic"):
            raise ConfigError(f"ATTNLOOM_HOST_ISA is {asked!r}; on {machine} it may be 'native' or 'generic'")
        return asked or "native"
    best = -1
    for level, needs in enumerate(_X86_NEEDS):
        if not needs <= flags:
            break
        best = level
    if not asked:
        return X86_LEVELS[best] if best >= 0 else "generic"
    if asked in ("native", "generic"):
        return asked
    if asked not in X86_LEVELS:
        allowed = ", ".join((*X86_LEVELS, "native", "generic"))
        raise ConfigError(f"ATTNLOOM_HOST_ISA is {asked!r}; it may be one of {allowed}")
    level = X86_LEVELS.index(asked)
    if level > best:
        missing = sorted(frozenset().union(*_X86_NEEDS[: level + 1]) - flags)
        has = X86_LEVELS[best] if best >= 0 else "less than x86-64-v2"
        raise UnsupportedError(
            f"ATTNLOOM_HOST_ISA is {asked!r}, but this CPU has {has} (it lacks {', '.join(missing)}): unset or lower it"
        )
    return asked


def best_isa() -> str:
    """The best instruction set that this CPU has, as `pick_isa` picks it without being asked for another."""
    return pick_isa(None, platform.machine(), cpu_flags())


def isa_flags(isa: str, machine: str) -> tuple[str, ...]:
    """The compiler flags of an instruction set."""
    if isa == "generic":
        return ()
    if isa == "native":
        return ("-march=native",) if machine in ("x86_64", "AMD64") else ("-mcpu=native",)
    march, _, extra = isa.partition("+")
    return (f"-march={march}", *([f"-m{extra}"] if extra else []))


@functools.lru_cache(maxsize=32)
def _probe(command: tuple[str, ...]) -> str:
    shown = shlex.join(command)
    query = [*command, "-std=c++20", "-E", "-P", "-x", "c++", "-"]
    macros = "#ifdef __clang__\nclang __clang_major__ __clang_minor__ __clang_patchlevel__\n#else\n"
    macros += "gcc __GNUC__ __GNUC_MINOR__ __GNUC_PATCHLEVEL__\n#endif\n"
    try:
        done = subprocess.run(query, input=macros, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        raise CompileError(f"the compiler {shown} does not start: {error.strerror}") from error
    match = re.search(r"^(gcc|clang) (\d+) (\d+) (\d+)", done.stdout, re.MULTILINE)
    if done.returncode != 0 or match is None:
        tail = (done.stderr or done.stdout).strip()[-400:] or f"exit status {done.returncode}, no output"
        raise CompileError(f"the compiler {shown} does not work (GCC >= 11 or Clang >= 14 is needed): {tail}")
    family, version = match[1], tuple(int(part) for part in match.groups()[1:])
    text = ".".join(map(str, version))
    if version < FLOORS[family]:
        floor = FLOORS[family][0]
        raise CompileError(
            f"the compiler {shown} is {family} {text}, but {family} >= {floor} is needed. {_INSTALL}, or set CXX."
        )
    return f"{family} {text}"


def _is_clang(command: tuple[str, ...]) -> bool:
    return any("clang" in os.path.basename(word) for word in command)


def _has_symbol(name: str) -> bool:
    try:
        getattr(ctypes.CDLL(None), name)
    except AttributeError:
        return False
    return True
