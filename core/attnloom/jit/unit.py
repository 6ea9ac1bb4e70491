"""What is compiled (`CompileUnit`), what comes of it (`Artifact`, `CompileReport`), and the key it is kept under."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path

from attrs import field, frozen

from attnloom.errors import CompileError
from attnloom.jit.toolchain import Toolchain
from attnloom.variant import ABI

FORMAT = 1
"""Version of the cache's own layout; part of every key."""

HEADER_SUFFIXES = (".h", ".hpp", ".hh", ".cuh", ".inc", ".inl", ".ipp")
"""The files of an include folder whose content is part of the key of every unit that may include them."""


def _pairs(value) -> tuple[tuple[str, str], ...]:
    items = value.items() if hasattr(value, "items") else value
    return tuple((str(name), str(text)) for name, text in items)


def _strings(value) -> tuple[str, ...]:
    return tuple(str(item) for item in value)


@frozen(cache_hash=True)
class CompileUnit:
    """One shared library to be: texts and all that decides what they compile to.

    Attributes:
        name: of the library, for people; `[A-Za-z0-9_.-]+`.
        sources: `{file name: text}`; the names end in `.cc`, `.cpp` or `.cu`.
        include_dirs: folders of headers, searched in order; the content of every header below them is part of the key.
        owners: `{path prefix: label}`; a compile error in a file below the prefix names the label.
        flags: further compiler flags; `link_flags` go to the linker.
        kind: `"kernel"`, `"binding"`, `"scheduler"`, ...: what `attnloom cache list` groups by.
        system_include_dirs: folders of headers that are not read for the key; say in `salt` what identifies them.
        detail: what tells it from others of its name, for people, such as a kernel's tiles; no part of the key.
    """

    name: str = field()
    sources: tuple[tuple[str, str], ...] = field(converter=_pairs)
    include_dirs: tuple[str, ...] = field(default=(), converter=_strings)
    owners: tuple[tuple[str, str], ...] = field(default=(), converter=_pairs, eq=False)
    flags: tuple[str, ...] = field(default=(), converter=_strings)
    kind: str = "kernel"
    link_flags: tuple[str, ...] = field(default=(), converter=_strings)
    system_include_dirs: tuple[str, ...] = field(default=(), converter=_strings)
    salt: str = ""
    detail: str = field(default="", eq=False)

    @property
    def title(self) -> str:
        """The name, and the detail in brackets."""
        return f"{self.name} ({self.detail})" if self.detail else self.name

    @name.validator
    def _is_file_name(self, _attribute, value):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", value):
            raise CompileError(
                f"the name of a compile unit, {value!r}, must be a plain file name of at most 100 characters"
            )

    @sources.validator
    def _are_sources(self, _attribute, value):
        names = [name for name, _ in value]
        if not names or len(set(names)) != len(names):
            raise CompileError(f"compile unit {self.name!r} needs sources of distinct names, got {names}")
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.(cc|cpp|cu)", name):
                raise CompileError(
                    f"compile unit {self.name!r}: {name!r} is no plain file name ending in .cc, .cpp or .cu"
                )


@frozen
class Artifact:
    """A library in the cache.

    Attributes:
        path: of the shared library.
        key: SHA-256 of what it was built from.
        hit: whether this call found it, rather than compiled it.
        seconds: what this call took to find, wait for or compile it; 0 where the process already knew it.
        debug: whether it is built with sanitizers.
    """

    path: Path
    key: str
    hit: bool
    seconds: float
    debug: bool = False


@frozen
class CompileReport:
    """What the hook `attnloom_kernel_compiled` is told after a compile (never after a hit).

    Attributes:
        name, kind, detail: of the unit.
        key, path: of the artifact.
        seconds: of compiling and linking.
        compiler: version line, such as `"gcc 12.2.0"`.
        flags: all flags.
        owners: labels of the plugins whose headers it was built with.
        resources: registers, memory and spills of each device kernel in it, as `jit.resources.read_resources` tells.
    """

    name: str
    kind: str
    key: str
    path: Path
    seconds: float
    compiler: str
    flags: tuple[str, ...]
    owners: tuple[str, ...]
    resources: tuple[dict, ...] = ()
    detail: str = ""


def unit_key(unit: CompileUnit, toolchain: Toolchain) -> str:
    """The SHA-256 under which `unit` built by `toolchain` is kept. Reads every header; starts no process."""
    digest = hashlib.sha256()

    def add(*parts: str) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogateescape")
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)

    add(f"format {FORMAT}", f"variant abi {ABI}", toolchain.identity, unit.name, unit.kind, unit.salt)
    for group in (toolchain.flags, toolchain.link_flags, unit.flags, unit.link_flags):
        add(str(len(group)), *group)
    for name, text in unit.sources:
        add(name, text)
    for folder in unit.include_dirs:
        add(tree_hash(folder))
    return digest.hexdigest()


@functools.cache
def tree_hash(folder: str) -> str:
    """A hash of the names and contents of all headers below `folder`; remembered until `forget`.

    Raises `CompileError` where the folder does not exist.
    """
    if not os.path.isdir(folder):
        raise CompileError(f"the include folder {folder} does not exist")
    digest = hashlib.sha256()
    for path in headers_below(folder):
        with open(path, "rb") as file:
            data = file.read()
        digest.update(f"{os.path.relpath(path, folder)} {len(data)}\0".encode("utf-8", "surrogateescape"))
        digest.update(data)
    return digest.hexdigest()


def headers_below(folder: str) -> list[str]:
    """The paths of all headers below `folder`, sorted."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        found += [os.path.join(parent, name) for name in names if name.endswith(HEADER_SUFFIXES)]
    return sorted(found)
