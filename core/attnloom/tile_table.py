"""Tiles that were measured: the table that `attnloom tune` writes and the core's choice of tiles reads.

`ATTNLOOM_TILE_TABLE` names the file (empty: none is read); else it is `tiles.json` in the user's data folder. An entry
holds for one problem on one device and one version of attnloom. A table changes the time that a computation takes,
never what it computes.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import asdict, converters, field, frozen

from attnloom import __version__
from attnloom.errors import AttnloomError, ConfigError
from attnloom.folders import user_folder
from attnloom.tile import Tile, TileChoice, TileProblem

VARIABLE = "ATTNLOOM_TILE_TABLE"
FORMAT = 1


def _tile(value) -> Tile:
    return value if isinstance(value, Tile) else Tile(**value)


def _times(value) -> dict[str, float]:
    return {name: float(taken) for name, taken in dict(value).items()}


def _text(value) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


@frozen(kw_only=True)
class Entry:
    """What was measured for one problem. Raises `TypeError`, `ValueError` or `UnsupportedError` for what cannot be one.

    Attributes:
        problem: what the tiles are for, as `problem_key` tells it.
        short, tall: the fastest tile classes.
        microseconds: of a run of each batch, by its name, with these tiles; `rule` with those of the core's rule.
        date: when, `YYYY-MM-DD`.
        version: of the attnloom that measured.
    """

    problem: dict[str, Any] = field(converter=dict)
    short: Tile = field(converter=_tile)
    tall: Tile | None = field(converter=converters.optional(_tile))
    microseconds: dict[str, float] = field(converter=_times)
    rule: dict[str, float] = field(converter=_times)
    date: str = field(converter=_text)
    version: str = field(converter=_text)


def problem_key(problem: TileProblem) -> dict[str, Any]:
    """What of a problem decides which tiles are fastest, as JSON holds it."""
    names = ("family", "device", "device_name", "dtype", "kv_dtype", "head_dim", "head_dim_v", "group")
    return {**{name: getattr(problem, name) for name in names}, "functors": sorted(problem.functors)}


def table_path() -> Path | None:
    """The file of the table, which need not be there; none where the environment says so."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return user_folder("data") / "tiles.json"
    return Path(os.path.expanduser(given)) if given.strip() else None


def stamp() -> tuple[Path, int, int] | None:
    """Path, time of change (ns) and bytes of the table: others whenever it may have changed. None without a table."""
    path = table_path()
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (path, found.st_mtime_ns, found.st_size)


def choose(problem: TileProblem) -> TileChoice | None:
    """The tiles that were measured for `problem`; none where it was not.

    Raises:
        ConfigError: a file that is no table or cannot be read, one that the environment names and is not there, or an
            entry of another version of attnloom.
    """
    path = table_path()
    entry = None if path is None else _find(path, problem)
    if entry is None:
        return None
    if entry.version != __version__:
        raise ConfigError(
            f"{path} was measured with attnloom {entry.version}, this is {__version__}: run `attnloom tune` again"
        )
    fits = problem.max_qo_len is not None and problem.max_qo_len * problem.group <= entry.short.t_q
    where = entry.problem.get("device_name") or problem.device
    return TileChoice(
        short=entry.short,
        tall=None if fits else entry.tall,
        why=[
            f"measured on {where} on {entry.date}, in {path}: {_listed(entry.microseconds)}",
            f"the tiles of the core's rule took {_listed(entry.rule)}",
        ],
    )


def read(path: Path) -> list[Entry]:
    """The entries of a table. Raises `ConfigError` for a file that is none or cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        given = data["format"]
        if given == FORMAT:
            return [Entry(**entry) for entry in data["entries"]]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, OverflowError, AttnloomError) as error:
        raise ConfigError(f"{path} is no tile table ({error}): remove it, or set {VARIABLE}") from error
    raise ConfigError(f"{path} has format {given}, this attnloom reads {FORMAT}: remove it, or set {VARIABLE}")


def require_writable(path: Path) -> None:
    """Raise `ConfigError` for a table that `add` could not add to, before anything is measured."""
    with _held(path):
        _read_if_there(path)


def add(path: Path, entry: Entry) -> None:
    """Put `entry` into the table at `path`, in the place of an older one of its problem.

    Processes take turns. Raises `ConfigError` where the file is no table, or cannot be read or written.
    """
    with _held(path):
        kept = [other for other in _read_if_there(path) if other.problem != entry.problem]
        data = {"format": FORMAT, "entries": [asdict(one) for one in (*kept, entry)]}
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; set {VARIABLE}, or give --output") from error


def _read_if_there(path: Path) -> list[Entry]:
    return read(path) if path.exists() else []


def _find(path: Path, problem: TileProblem) -> Entry | None:
    try:
        found = path.stat()
    except OSError as error:
        if VARIABLE in os.environ:
            raise ConfigError(f"{VARIABLE} names {path}, which cannot be read: {error.strerror}") from error
        return None
    wanted = problem_key(problem)
    if not wanted["device_name"]:  # no device is at hand: any that shares the architecture will do
        del wanted["device_name"]
    entries = _read_once(path, found.st_mtime_ns, found.st_size)
    matching = [entry for entry in entries if wanted.items() <= entry.problem.items()]
    return matching[-1] if matching else None


@functools.lru_cache(maxsize=4)
def _read_once(path: Path, _changed: int, _size: int) -> list[Entry]:
    return read(path)


def _listed(microseconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f} us" for name, value in microseconds.items())
