"""What a distribution brings, read from a wheel that is built for the purpose or from an installation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from unittest import SkipTest
from urllib.parse import urlparse
from urllib.request import url2pathname

import importlib_metadata
from attrs import frozen

from attnloom.errors import PluginError
from attnloom.plugins.naming import canonicalize_name

_BUILD = """
import importlib, sys
backend, target, *path = sys.argv[1:]
sys.path[:0] = path
module, _, attr = backend.partition(":")
try:
    built_by = importlib.import_module(module)
except ImportError as error:
    sys.exit(f"the build backend {module!r} is not installed here ({error})")
print(getattr(built_by, attr, built_by).build_wheel(target))
"""
NO_BACKEND = "is not installed here"


@frozen(kw_only=True)
class Package:
    """The metadata and the files of one distribution.

    Attributes:
        origin: what was read, for messages.
        entry_points: `{group: {name: value}}`.
        files: paths as they are installed, `/` between the parts; empty where an editable install does not tell.
    """

    origin: str
    name: str
    version: str
    requires: tuple[str, ...]
    entry_points: dict[str, dict[str, str]]
    files: frozenset[str]

    def holds_module(self, module: str) -> bool:
        """Whether the module is among the files."""
        path = module.replace(".", "/")
        return bool({f"{path}.py", f"{path}/__init__.py"} & self.files)


def build_wheel(folder: Path, target: Path) -> Path:
    """Build the wheel of the project in `folder` with its own build backend, which must be installed.

    Raises:
        SkipTest: the backend is not installed.
        PluginError: there is no project, or it does not build; the message ends with what the backend said.
    """
    project = read_project(folder)
    system = project.get("build-system", {})
    backend = system.get("build-backend", "setuptools.build_meta:__legacy__")
    path = [str(folder / part) for part in system.get("backend-path", ())]
    target.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _BUILD, backend, str(target), *path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        if said and NO_BACKEND in said[-1]:
            raise SkipTest(f"{said[-1]}: pip install {' '.join(system.get('requires', ['setuptools']))}")
        raise PluginError(f"{folder} does not build with {backend}: " + " | ".join(said[-3:]))
    return target / done.stdout.strip().splitlines()[-1]


def read_project(folder: Path) -> dict:
    """The tables of the project's `pyproject.toml`. Raises `PluginError`."""
    path = Path(folder) / "pyproject.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PluginError(f"{folder} holds no project: {path.name} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise PluginError(f"{path} is no TOML: {error}") from error


def read_wheel(path: Path) -> Package:
    """What installing the wheel would bring."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    info = next(name.split("/")[0] for name in names if name.split("/")[0].endswith(".dist-info"))
    distribution = importlib_metadata.PathDistribution(zipfile.Path(path, f"{info}/"))
    return _package(distribution, f"the wheel {path.name}", frozenset(names))


def read_installed(name: str, path: list[str] | None = None) -> Package:
    """What the installed distribution brought. An editable install does not tell its files."""
    searched = {} if path is None else {"path": path}
    found = next(iter(importlib_metadata.distributions(name=name, **searched)), None)
    if found is None:
        raise PluginError(f"no distribution {name!r} is installed")
    files = frozenset() if editable_folder(found) else frozenset(str(file) for file in found.files or ())
    return _package(found, f"the installed {name} {found.version}", files)


def _package(distribution, origin: str, files: frozenset[str]) -> Package:
    groups: dict[str, dict[str, str]] = {}
    for point in distribution.entry_points:
        groups.setdefault(point.group, {})[point.name] = point.value
    return Package(
        origin=origin,
        name=canonicalize_name(distribution.metadata["Name"]),
        version=distribution.version,
        requires=tuple(distribution.requires or ()),
        entry_points=groups,
        files=files,
    )


def project_folder(start: Path, distribution: str) -> Path | None:
    """The folder whose `pyproject.toml` makes `distribution`: one above `start`, or where it is installed from."""
    for folder in (start, *start.parents):
        if (folder / "pyproject.toml").is_file():
            name = read_project(folder).get("project", {}).get("name", "")
            if canonicalize_name(name) == distribution:
                return folder
    found = next(iter(importlib_metadata.distributions(name=distribution)), None)
    return editable_folder(found) if found is not None else None


def editable_folder(distribution) -> Path | None:
    """The folder of an editable install; none where it is no editable one."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    if not origin.get("dir_info", {}).get("editable"):
        return None
    folder = Path(url2pathname(urlparse(origin.get("url", "")).path))
    return folder if (folder / "pyproject.toml").is_file() else None
