"""A folder of made-up installed distributions, which plugin sets can search instead of the real ones."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path

import pytest
from attnloom.plugins import Config, PluginSet

VARIANT = """
from attnloom.hookspecs import hookimpl
from attnloom.variant import Variant

@hookimpl
def attnloom_variants():
    yield Variant(name="{name}", struct="S", header="s.h", functors={{"logits_mask"}}, reference="numpy:ndarray")
"""


class Site:
    """A folder as pip leaves it: packages, and a dist-info beside each."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        name: str,
        body: str | None = None,
        *,
        distribution: str | None = None,
        version: str = "0.1.0",
        provides: tuple[str, ...] | None = None,
        requires: tuple[str, ...] = ("attnloom>=0.0.1",),
        package: str | None = None,
        entry_points: str | None = None,
        metadata: str | None = None,
    ) -> Path:
        """A distribution with the plugin `name`, by default one that provides a variant of that name."""
        distribution = distribution or f"fake-{name.replace('_', '-')}"
        package = package or f"fake_{distribution.replace('-', '_')}"
        provides = (f"variant.{name}",) if provides is None else provides
        folder = self.path / package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("")
        (folder / "s.h").write_text("#pragma once\n")
        (folder / "plugin.py").write_text(VARIANT.format(name=name) if body is None else textwrap.dedent(body))
        info = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        if metadata is None:
            needs = "".join(f"Requires-Dist: {text}\n" for text in requires)
            metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{needs}"
        (info / "METADATA").write_text(metadata)
        if entry_points is None:
            lines = "".join(f"{item} = {package}.plugin\n" for item in provides)
            entry_points = f"[attnloom]\n{name} = {package}.plugin\n\n[attnloom.provides]\n{lines}"
        (info / "entry_points.txt").write_text(entry_points)
        importlib.invalidate_caches()
        return info

    def plugins(self, **config) -> PluginSet:
        """The plugin set of this folder alone."""
        return PluginSet.from_config(Config(**config), paths=[str(self.path)])


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An importable, empty `Site`."""
    made = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.path))
    yield made
    for name in [name for name in sys.modules if name.startswith("fake_")]:
        del sys.modules[name]


@pytest.fixture
def states():
    """`{plugin: state}` of a set, the core left out."""
    return lambda plugin_set: {record.name: str(record.state) for record in plugin_set.records()[1:]}
