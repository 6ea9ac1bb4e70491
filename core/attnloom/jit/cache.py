"""The cache of compiled libraries: one folder an entry, published by a rename, owned by one user.

    <cache>/jit/<name>-<key>/     manifest.json, the library, the sources it was built from
    <cache>/jit/locks/            one file a key: who holds it builds
    <cache>/jit/scratch/          builds under way; those of dead processes are removed by the next build
    <cache>/jit/logs/             the latest builds that failed: what the compiler said, and their sources

<cache> is `ATTNLOOM_CACHE_DIR`, else the user's cache folder. Finding an entry takes no lock and writes nothing, so a
cache on a read-only disk serves what it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from attnloom.errors import ConfigError
from attnloom.folders import user_folder

MANIFEST = "manifest.json"
LOG = "log.txt"
_FAILURES_KEPT = 32
_INNER = ("locks", "scratch", "logs")


class CorruptEntryError(Exception):
    """An entry is there but cannot be used; its text says why."""


@frozen
class Entry:
    """One library in the cache, as its manifest tells it.

    Attributes:
        name, kind, key, detail: of the unit.
        path: of the library.
        bytes: its size.
        seconds: what compiling took.
        compiler, flags, isa: what built it.
        owners: labels of the plugins whose headers it includes.
        resources: of each device kernel in it, as `jit.resources.read_resources` tells.
        created: when, ISO 8601, UTC.
        problem: why it cannot be used, or none.
    """

    name: str
    kind: str = ""
    key: str = ""
    path: Path | None = None
    bytes: int = 0
    seconds: float = 0.0
    compiler: str = ""
    flags: tuple[str, ...] = ()
    isa: str = ""
    owners: tuple[str, ...] = ()
    resources: tuple[dict, ...] = ()
    created: str = ""
    problem: str | None = None
    detail: str = ""

    @property
    def title(self) -> str:
        """As of a `CompileUnit`."""
        return f"{self.name} ({self.detail})" if self.detail else self.name


def root() -> Path:
    """The folder of the compiled libraries. Nothing is created."""
    if chosen := os.environ.get("ATTNLOOM_CACHE_DIR", "").strip():
        return Path(os.path.abspath(os.path.expanduser(chosen)), "jit")
    return user_folder("cache") / "jit"


def check_owner(folder: Path) -> None:
    """Raise `ConfigError` if `folder` exists and another user owns it or may write to it: its libraries run as you."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder} cannot be read: {error.strerror}. Set ATTNLOOM_CACHE_DIR."
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"the cache folder {folder} is not a folder: remove it, or set ATTNLOOM_CACHE_DIR to another")
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"the cache folder {folder} belongs to user {status.st_uid}, but you are user {os.geteuid()}, and its "
            "libraries would run as you: set ATTNLOOM_CACHE_DIR to a folder of your own"
        )
    if status.st_mode & 0o022:
        raise ConfigError(
            f"the cache folder {folder} may be written by others (mode {stat.S_IMODE(status.st_mode):04o}), and its "
            f"libraries run as you: chmod 700 {folder}"
        )


def create(folder: Path) -> None:
    """Make the cache folder and its inner ones, for this user alone."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    check_owner(folder)
    for name in _INNER:
        (folder / name).mkdir(mode=0o700, exist_ok=True)


def entry_folder(folder: Path, name: str, key: str) -> Path:
    """Where the entry of `key` is, or would be."""
    return folder / f"{name}-{key[:32]}"


def find(folder: Path, name: str, key: str) -> Path | None:
    """The library of `key`, verified against its manifest; none if there is no such entry.

    Raises `CorruptEntryError`.
    """
    entry = entry_folder(folder, name, key)
    try:
        text = (entry / MANIFEST).read_bytes()
    except FileNotFoundError:
        if entry.is_dir():
            raise CorruptEntryError("it has no manifest") from None
        return None
    except OSError as error:
        raise CorruptEntryError(f"its manifest cannot be read ({error.strerror})") from error
    try:
        manifest = json.loads(text)
        recorded, library, expected = manifest["key"], entry / Path(manifest["library"]).name, manifest["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptEntryError("its manifest is damaged") from error
    if recorded != key:
        raise CorruptEntryError("its manifest is of another key")
    try:
        actual = file_hash(library)
    except OSError as error:
        raise CorruptEntryError(f"its library cannot be read ({error.strerror})") from error
    if actual != expected:
        raise CorruptEntryError("its library is not the one that was built (its SHA-256 differs from the manifest's)")
    return library


def file_hash(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def build_lock(folder: Path, name: str, key: str) -> Iterator[None]:
    """Hold the right to build `key`, across threads and processes; released by the system if the process dies."""
    from filelock import FileLock

    with FileLock(str(folder / "locks" / f"{name}-{key[:32]}.lock")):
        yield


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder to build in, on the cache's own file system; removed at the end, or by others if this process dies."""
    import fcntl

    parent = folder / "scratch"
    with _guard(parent):
        _remove_dead(parent)
        work = Path(tempfile.mkdtemp(prefix="build-", dir=parent))
        alive = os.open(work / "alive", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(alive, fcntl.LOCK_EX)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(alive)


def publish(folder: Path, built: Path, name: str, key: str) -> None:
    """Rename the finished folder `built` into its place. Call it under `build_lock`."""
    place = entry_folder(folder, name, key)
    if place.exists():
        discard(folder, place)
    os.rename(built, place)


def discard(folder: Path, entry: Path) -> None:
    """Take an entry away at once, then remove its files; a process that has it loaded keeps it."""
    (folder / "scratch").mkdir(mode=0o700, exist_ok=True)
    trash = Path(tempfile.mkdtemp(prefix="trash-", dir=folder / "scratch"))
    with contextlib.suppress(FileNotFoundError):
        os.rename(entry, trash / "entry")
    shutil.rmtree(trash, ignore_errors=True)


def keep_failure(folder: Path, work: Path, sources, name: str, key: str, log: str) -> Path:
    """Keep sources and log of a failed build, in place of the same unit's last failure; returns the log's path."""
    place = folder / "logs" / f"{name}-{key[:32]}"
    with contextlib.suppress(OSError):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700, parents=True)
        (place / LOG).write_text(log, encoding="utf-8", errors="replace")
        for source in sources:
            shutil.copyfile(work / source, place / source)
        for old in sorted(place.parent.iterdir(), key=lambda path: path.stat().st_mtime)[:-_FAILURES_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return place / LOG


def entries(folder: Path | None = None) -> list[Entry]:
    """Every library in the cache, by name then age. Only manifests are read."""
    folder = folder or root()
    check_owner(folder)
    found = [_describe(path) for path in _entry_folders(folder)]
    return sorted(found, key=lambda entry: (entry.kind, entry.title, entry.created))


def clear(folder: Path | None = None) -> tuple[int, int]:
    """Remove every library, every log and what dead builds left; returns how many libraries and how many bytes.

    Builds under way are left alone. A process keeps what it has loaded.
    """
    folder = folder or root()
    check_owner(folder)
    if not folder.is_dir():
        return 0, 0
    count = size = 0
    for path in _entry_folders(folder):
        size += _size(path)
        discard(folder, path)
        count += 1
    shutil.rmtree(folder / "logs", ignore_errors=True)
    with _guard(folder / "scratch"):
        _remove_dead(folder / "scratch")
    return count, size


def _entry_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_dir() and path.name not in _INNER]


def _describe(path: Path) -> Entry:
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        library = path / Path(manifest["library"]).name
        listed = {name: manifest[name] for name in ("name", "kind", "key", "seconds", "compiler", "isa", "created")}
        groups = {name: tuple(manifest[name]) for name in ("flags", "owners")}
        return Entry(
            **listed,
            **groups,
            resources=tuple(manifest.get("resources", ())),
            detail=manifest.get("detail", ""),
            path=library,
            bytes=_size(path),
            problem=None if library.is_file() else "no library",
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Entry(name=path.name, bytes=_size(path), problem="no readable manifest")


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@contextlib.contextmanager
def _guard(scratch_folder: Path) -> Iterator[None]:
    """Held while scratch folders are made or removed, so that none is removed between its birth and its lock."""
    from filelock import FileLock

    scratch_folder.mkdir(mode=0o700, exist_ok=True)
    locks = scratch_folder.parent / "locks"
    locks.mkdir(mode=0o700, exist_ok=True)
    with FileLock(str(locks / "scratch.lock")):
        yield


def _remove_dead(scratch_folder: Path) -> None:
    import fcntl

    for work in scratch_folder.iterdir():
        if not work.name.startswith("build-"):
            continue
        try:
            with open(work / "alive") as alive:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(work, ignore_errors=True)
        except FileNotFoundError:
            shutil.rmtree(work, ignore_errors=True)
        except OSError:
            continue
