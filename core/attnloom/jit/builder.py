"""From a `CompileUnit` to an `Artifact`: found in the cache, or built once however many ask at a time."""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from attnloom.errors import CompileError
from attnloom.jit import cache, diagnostics, ninja
from attnloom.jit.toolchain import Toolchain, host_toolchain
from attnloom.jit.unit import Artifact, CompileReport, CompileUnit, tree_hash, unit_key

_log = logging.getLogger("attnloom.jit")
_known: dict[tuple, Artifact] = {}

OnStart = Callable[[CompileUnit], None]
OnCompiled = Callable[[CompileReport], None]


def build(
    unit: CompileUnit,
    toolchain: Toolchain | None = None,
    *,
    on_start: OnStart | None = None,
    on_compiled: OnCompiled | None = None,
) -> Artifact:
    """The library of `unit`: a dictionary look-up in this process, else a verified cache entry, else a compile.

    Args:
        unit: what to build.
        toolchain: by default that of the host.
        on_start: called with the unit when it has to be compiled, before it is.
        on_compiled: called with a `CompileReport` after a compile by this call.

    Raises `CompileError` (compiler missing, too old or killed, disk full, or the code is wrong: then the text names the
    plugin, its file and line, and the attributes `diagnostic` and `log` hold the details) and `ConfigError` for a cache
    folder that others own.
    """
    toolchain = toolchain or host_toolchain()
    remembered = (unit, toolchain, os.environ.get("ATTNLOOM_CACHE_DIR"))
    if (known := _known.get(remembered)) is not None:
        return known
    begin = time.perf_counter()
    folder = cache.root()
    cache.check_owner(folder)
    key = unit_key(unit, toolchain)
    library, problem = _find(folder, unit, key)
    hit = library is not None
    if library is None:
        library, hit = _build_once(folder, unit, toolchain, key, problem, on_start, on_compiled)
    artifact = Artifact(library, key, hit, time.perf_counter() - begin, toolchain.debug)
    _known[remembered] = Artifact(library, key, True, 0.0, toolchain.debug)
    return artifact


def build_all(
    wanted: Iterable[tuple[CompileUnit, Toolchain | None]],
    *,
    on_start: OnStart | None = None,
    on_compiled: OnCompiled | None = None,
) -> list[Artifact]:
    """As `build`, for several units, each with its toolchain, at a time; the callbacks may come from other threads.

    Every unit is tried; the first error is raised at the end.
    """
    wanted = list(wanted)
    results: list[Artifact | BaseException | None] = [None] * len(wanted)

    def one(position: int) -> None:
        try:
            results[position] = build(*wanted[position], on_start=on_start, on_compiled=on_compiled)
        except BaseException as error:
            results[position] = error

    threads = [threading.Thread(target=one, args=(position,), daemon=True) for position in range(1, len(wanted))]
    for thread in threads:
        thread.start()
    if wanted:
        one(0)
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def forget() -> None:
    """Forget what this process knows of headers and libraries, so that an edited header is seen. Loaded ones stay."""
    _known.clear()
    tree_hash.cache_clear()


def clear() -> tuple[int, int]:
    """Empty the cache (see `cache.clear`) and forget what this process found in it."""
    removed = cache.clear()
    forget()
    return removed


def _find(folder: Path, unit: CompileUnit, key: str) -> tuple[Path | None, str | None]:
    try:
        return cache.find(folder, unit.name, key), None
    except cache.CorruptEntryError as error:
        return None, str(error)


def _build_once(folder, unit, toolchain, key, problem, on_start, on_compiled) -> tuple[Path, bool]:
    try:
        cache.create(folder)
        with cache.build_lock(folder, unit.name, key):
            library, problem = _find(folder, unit, key)
            if library is not None:
                return library, True
            if problem is not None:
                warnings.warn(f"the cached library {unit.title} is rebuilt: {problem}", RuntimeWarning, stacklevel=4)
            if on_start is not None:
                on_start(unit)
            report = _compile(folder, unit, toolchain, key)
    except OSError as error:
        raise CompileError(_explain_os_error(error, folder, unit)) from error
    _log.info("compiled %s in %.1f s with %s", unit.title, report.seconds, report.compiler)
    if on_compiled is not None:
        on_compiled(report)
    return report.path, False


def _compile(folder: Path, unit: CompileUnit, toolchain: Toolchain, key: str) -> CompileReport:
    compiler = toolchain.probe()
    place = cache.entry_folder(folder, unit.name, key)
    library = f"{unit.name}.so"
    with cache.scratch(folder) as work:
        begin = time.perf_counter()
        for name, text in unit.sources:
            (work / name).write_text(text, encoding="utf-8")
        ninja.write_graph(
            work,
            sources=[name for name, _ in unit.sources],
            output=library,
            command=toolchain.command,
            flags=(*toolchain.flags, *unit.flags, *toolchain.path_flags(str(work), str(place))),
            include_dirs=unit.include_dirs,
            system_include_dirs=unit.system_include_dirs,
            link_command=toolchain.link_command,
            link_flags=(*toolchain.link_flags, *unit.link_flags),
        )
        result = ninja.run(work)
        fault = None if result.status else _fault_of_library(work / library)
        if result.status or fault:
            raise _failure(folder, unit, key, toolchain, result.log, work, fault)
        seconds = time.perf_counter() - begin
        owners = tuple(dict.fromkeys(label for _, label in unit.owners if label != diagnostics.CORE))
        report = CompileReport(
            unit.name,
            unit.kind,
            key,
            place / library,
            seconds,
            compiler,
            (*toolchain.flags, *unit.flags),
            owners,
            tuple(toolchain.resources(result.log)),
            unit.detail,
        )
        _pack(work, unit, toolchain, report)
        cache.publish(folder, work / "entry", unit.name, key)
    return report


def _pack(work: Path, unit: CompileUnit, toolchain: Toolchain, report: CompileReport) -> None:
    """Gather the library, its sources and its manifest in `work/entry`."""
    entry = work / "entry"
    entry.mkdir(mode=0o700)
    for name in (report.path.name, *(name for name, _ in unit.sources)):
        os.rename(work / name, entry / name)
    library = entry / report.path.name
    manifest = {
        "name": unit.name,
        "kind": unit.kind,
        "detail": unit.detail,
        "key": report.key,
        "library": library.name,
        "sha256": cache.file_hash(library),
        "seconds": round(report.seconds, 3),
        "compiler": report.compiler,
        "command": list(toolchain.command),
        "flags": list(report.flags),
        "isa": toolchain.isa,
        "owners": list(report.owners),
        "resources": list(report.resources),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (entry / cache.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _fault_of_library(path: Path) -> str | None:
    """What is wrong with the file that a compiler claims to have built: it must be a whole ELF file."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            size = file.seek(0, os.SEEK_END)
    except OSError:
        return "the compiler reported success but wrote no library"
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return "the compiler reported success but wrote something that is no shared library"
    (sections,) = struct.unpack_from("<Q", head, 0x28)
    entry_size, count = struct.unpack_from("<HH", head, 0x3A)
    whole = sections + entry_size * count <= size
    return None if whole else "the compiler reported success but wrote a truncated library"


def _failure(folder, unit, key, toolchain, log, work, fault) -> CompileError:
    log = toolchain.messages(log.replace(f"{work}{os.sep}", ""))
    path = cache.keep_failure(folder, work, [name for name, _ in unit.sources], unit.name, key, log)
    found = diagnostics.Diagnostic(None, "", 0, 0, fault) if fault else diagnostics.diagnose(log, unit.owners)
    subject = found.owner or f"{unit.kind} {unit.title}"
    if found.owner and not found.owner.startswith("variant "):  # a descriptor given in code belongs to no plugin
        subject = f"plugin {found.owner}"
    command = shlex.join(toolchain.command)
    error = CompileError(
        f"{subject} does not compile with {command}:\n{found}\nThe whole log, beside the sources: {path}"
    )
    error.diagnostic, error.log = found, path
    return error


def _explain_os_error(error: OSError, folder: Path, unit: CompileUnit) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = f"the disk is full: {diagnostics.FREE_SPACE}"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        advice = "it cannot be written: set ATTNLOOM_CACHE_DIR to a folder of your own"
    else:
        advice = error.strerror or str(error)
    return f"cannot keep the compiled {unit.kind} {unit.title} in the cache {folder}: {advice} ({error})"
