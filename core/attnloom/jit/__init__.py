"""Compiled libraries: toolchains, the content-addressed cache, and loading. Importing this package compiles nothing.

`build(unit)` gives an `Artifact`; `load(artifact)` a `KernelHandle`; `prepare(units)` builds kernels, launcher and
scheduler at a time, which is what a first use wants.
"""

from __future__ import annotations

from attnloom.lazy import exports

_HOMES = {
    "Artifact": "unit",
    "CompileReport": "unit",
    "CompileUnit": "unit",
    "Entry": "cache",
    "KernelHandle": "launcher",
    "Toolchain": "toolchain",
    "arch_of": "nvcc",
    "binding": "launcher",
    "build": "builder",
    "build_all": "builder",
    "clear": "builder",
    "cuda_toolchain": "nvcc",
    "entries": "cache",
    "forget": "builder",
    "host_toolchain": "toolchain",
    "include_dirs": "launcher",
    "load": "launcher",
    "prepare": "launcher",
    "scheduler_library": "launcher",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = exports(globals(), _HOMES)
