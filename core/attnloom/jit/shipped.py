"""Libraries built ahead of time: folders that can be copied to machines that have no compiler.

`attnloom compile --output DIR` fills one; `ATTNLOOM_SHIPPED=DIR` (several with `:`) lets it be looked in before the
cache. An entry is kept under what its sources are and what they were built for (`"sm_90a"`, `"x86-64-v3"`), whatever
compiler did it, and is verified like an entry of the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path

from attnloom.errors import ConfigError
from attnloom.jit import cache
from attnloom.jit.toolchain import X86_LEVELS, best_isa
from attnloom.jit.unit import FORMAT, Artifact, CompileUnit, tree_hash
from attnloom.variant import ABI

VARIABLE = "ATTNLOOM_SHIPPED"


def folders() -> list[Path]:
    """The folders of `ATTNLOOM_SHIPPED`. Raises `ConfigError` for one that is not there or that others may write to."""
    found = [Path(os.path.expanduser(text)) for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text.strip()]
    for folder in found:
        _check(folder)
    return found


def find(unit: CompileUnit, target: str | None = None) -> Artifact | None:
    """The shipped library of `unit`, or none.

    Args:
        target: the CUDA architecture; none: the best of the instruction sets that this CPU has.
    """
    for folder in folders() if VARIABLE in os.environ else ():
        for built_for in (target,) if target else host_targets():
            key = shipped_key(unit, built_for)
            try:
                library = cache.find(folder, unit.name, key)
            except cache.CorruptEntryError as error:
                warnings.warn(f"{unit.title} in {folder} is passed over: {error}", RuntimeWarning, stacklevel=4)
                continue
            if library is not None:
                return Artifact(library, key, True, 0.0)
    return None


def add(folder: Path, unit: CompileUnit, artifact: Artifact, target: str) -> Path:
    """Copy a built library, its sources and its manifest into `folder`; returns the library's path there."""
    key = shipped_key(unit, target)
    place = cache.entry_folder(folder, unit.name, key)
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    shutil.copytree(artifact.path.parent, place)
    manifest = json.loads((place / cache.MANIFEST).read_text(encoding="utf-8"))
    manifest.update(key=key, target=target)
    (place / cache.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    place.chmod(0o755)
    return place / artifact.path.name


def host_targets() -> list[str]:
    """What a host library that this CPU runs may have been built for, the best first."""
    best = best_isa()
    return [*reversed(X86_LEVELS[: X86_LEVELS.index(best) + 1]), "generic"] if best in X86_LEVELS else [best, "generic"]


def shipped_key(unit: CompileUnit, target: str) -> str:
    """The SHA-256 of a unit's texts, headers and target; no compiler is part of it."""
    digest = hashlib.sha256()
    parts = [f"shipped {FORMAT}", f"variant abi {ABI}", target, unit.name, unit.kind, unit.salt, *unit.flags]
    for name, text in unit.sources:
        parts += [name, text]
    parts += [tree_hash(folder) for folder in unit.include_dirs]
    for part in parts:
        data = part.encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _check(folder: Path) -> None:
    try:
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"{VARIABLE} names {folder}, which cannot be read: {error.strerror}") from error
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise ConfigError(
            f"{VARIABLE} names {folder}, which others may write to (user {status.st_uid}, mode "
            f"{status.st_mode & 0o777:04o}), and its libraries run as you: chmod 755 it, or copy it to one of your own"
        )
