"""Show what attnloom finds on this machine: configuration, compiler, cache and plugins.

Nothing is compiled and no plugin is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from importlib_metadata import PackageNotFoundError, distributions, version

from attnloom import __version__
from attnloom.cli.plugins import print_table, resolve
from attnloom.errors import CompileError, ConfigError
from attnloom.jit import cache
from attnloom.jit.toolchain import find_compiler
from attnloom.plugins.configuration import Config
from attnloom.plugins.discovery import GROUP, PROVIDES, search_paths, unmet
from attnloom.plugins.origin import source_folder
from attnloom.plugins.pluginset import PluginSet
from attnloom.plugins.record import State
from attnloom.tile_table import VARIABLE, read, table_path


def run(argv: Sequence[str]) -> int:
    """Run `attnloom doctor ARGV`. Returns the exit status: 1 if anything is wrong."""
    options = argparse.ArgumentParser(prog="attnloom doctor", description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true", help="as JSON")
    as_json = options.parse_args(argv).json
    plugin_set, problem = resolve()
    problems = [str(problem)] if problem else []
    problems += problems_of(plugin_set)
    if as_json:
        print(json.dumps(report(plugin_set, problems), indent=2))
    else:
        print_report(plugin_set, problems)
    return 1 if problems else 0


def report(plugin_set: PluginSet, problems: list[str]) -> dict:
    """All that the doctor knows, as plain data."""
    return {
        "attnloom": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "torch": installed("torch"),
        "compiler": compiler()[0],
        "cuda compiler": cuda_compiler(),
        "cache": str(cache.root().parent),
        "tile table": tile_table()[0],
        "configuration": configuration(plugin_set.config),
        "plugins": [record.as_dict() for record in plugin_set.records()],
        "problems": problems,
    }


def print_report(plugin_set: PluginSet, problems: list[str]) -> None:
    """The report for people."""
    for title, value in report(plugin_set, problems).items():
        if isinstance(value, str):
            print(f"{title:<14} {value}")
    print("\nconfiguration")
    for key, value in configuration(plugin_set.config).items():
        print(f"  {key:<12} {value}")
    print("\nplugins")
    print_table(plugin_set.records())
    print()
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{len(problems)} problem(s)" if problems else "no problem found")


def configuration(config: Config) -> dict[str, str | list | dict | bool]:
    """The resolved configuration and where it comes from."""
    return {
        "source": config.source,
        "autoload": config.autoload,
        "enable": list(config.enable),
        "disable": list(config.disable),
        "required": list(config.required),
        "strict": config.strict,
        "prefer": config.prefer,
        "stacks": {name: list(stack.variants) for name, stack in config.stacks.items()},
        "settings": config.settings,
    }


def problems_of(plugin_set: PluginSet) -> list[str]:
    """What is wrong, a sentence each."""
    problems = [sentence for sentence, _ in unmet(plugin_set.records(), plugin_set.config)]
    for record in plugin_set.records():
        if record.state in (State.FAILED, State.INCOMPATIBLE):
            problems.append(record.status)
    for (kind, name), offering in plugin_set.clashes().items():
        problems.append(f"{kind} {name!r} is offered by {' and '.join(record.label for record in offering)}")
    problems += stale_installs()
    try:
        cache.check_owner(cache.root())
        check_writable(cache.root())
    except ConfigError as error:
        problems.append(str(error))
    return problems + [problem for _, problem in (compiler(), tile_table()) if problem]


def check_writable(folder: Path) -> None:
    """Raise `ConfigError` where the cache folder could not be made, or not written to."""
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"the cache folder {folder} cannot be written: set ATTNLOOM_CACHE_DIR to one that can")


def installed(name: str) -> str:
    """The version of a distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def compiler() -> tuple[str, str]:
    """The C++ compiler that kernels for this machine would be built with, and what is wrong with it, or nothing."""
    try:
        command = find_compiler(os.environ.get("CXX"), os.environ.get("PATH"))
    except CompileError as error:
        return "none found", str(error)
    words = shlex.join(command)
    try:
        told = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{words}, which does not run", f"the C++ compiler does not run, install one or set CXX: {error}"
    return f"{words} ({told.splitlines()[0] if told else 'no version'})", ""


def cuda_compiler() -> str:
    """The CUDA compiler that kernels for NVIDIA GPUs would be built with; it may be missing."""
    from attnloom.jit.nvcc import find_nvcc

    try:
        return str(find_nvcc(os.environ.get("CUDA_HOME"), os.environ.get("PATH")))
    except CompileError as error:
        unset = not os.environ.get("CUDA_HOME")
        return "none found (only CUDA kernels need one: pip install 'attnloom[cuda]')" if unset else str(error)


def tile_table() -> tuple[str, str]:
    """The table that tiles are chosen by, and what is wrong with it, or nothing."""
    path = table_path()
    if path is None:
        return f"none is read, {VARIABLE} is empty", ""
    if VARIABLE not in os.environ and not path.exists():
        return f"none yet, attnloom tune makes {path}", ""
    try:
        versions = [entry.version for entry in read(path)]
    except ConfigError as error:
        return str(path), f"the tile table is ignored: {error}"
    stale = [version for version in versions if version != __version__]
    others = ", ".join(sorted(set(stale)))
    told = f"{len(stale)} of {len(versions)} problems in {path} were measured with attnloom {others}: tune again"
    return f"{path} ({len(versions)} problem(s))", told if stale else ""


def stale_installs() -> Iterator[str]:
    """Editable installs whose `pyproject.toml` has other entry points of attnloom's than were installed."""
    import tomllib

    seen = set()
    for dist in distributions(path=search_paths()):
        try:
            folder = source_folder(dist)
            name = dist.metadata["Name"] if folder is not None else ""
            if folder is None or name in seen:
                continue
            seen.add(name)
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        except Exception:
            continue
        changed = []
        for group in (GROUP, PROVIDES):
            wanted = {(key, value) for key, value in project.get("entry-points", {}).get(group, {}).items()}
            changed += sorted(
                wanted ^ {(point.name, point.value) for point in dist.entry_points if point.group == group}
            )
        if changed:
            names = ", ".join(dict.fromkeys(repr(name) for name, _ in changed))
            yield (
                f"{name} is installed in editable form and its entry points ({names}) have changed since: install it "
                f"again (pip install -e {folder})"
            )
