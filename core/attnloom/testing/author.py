"""The suites that an author wrote, found in a project's tests, so that `attnloom plugins check` asks what they ask."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from attnloom.testing.suite import PluginSuite


def author_suites(folder: Path) -> tuple[list[type[PluginSuite]], list[str]]:
    """The suites in `tests/test_*.py` of a project, and a sentence for each file that cannot be imported."""
    suites, problems = [], []
    for number, path in enumerate(sorted((folder / "tests").glob("test_*.py"))):
        try:
            suites += suites_in(path, f"attnloom_checked_{number}")
        except Exception as error:
            problems.append(f"{path} is left out, it cannot be imported: {type(error).__name__}: {error}")
    return suites, problems


def suites_in(path: Path, module_name: str) -> Iterator[type[PluginSuite]]:
    """The suites that one file defines."""
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, PluginSuite) and value.__module__ == module_name:
            yield value


def suite_for(suites: list[type[PluginSuite]], base: type[PluginSuite], name: str) -> type[PluginSuite]:
    """The author's suite of a contribution, or the kit's."""
    own = [suite for suite in suites if issubclass(suite, base) and getattr(suite, base.kind, None) == name]
    return own[0] if own else base
