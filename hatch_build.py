"""Writes the optional dependencies: those of `pyproject.toml`, and `all`, every plugin of this checkout.

From a checkout `all` names the plugin folders, so that `pip install ".[all]"` needs no index. With `ATTNLOOM_RELEASE`
set it names distributions and versions instead, so that no local path lands in a published wheel.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

PLUGIN_FOLDERS = ("plugins/builtin", "storage_formats")


class OptionalDependencies(MetadataHookInterface):
    """The metadata hook that `[tool.hatch.metadata.hooks.custom]` configures."""

    def update(self, metadata: dict) -> None:
        """Set `optional-dependencies` in the project's metadata."""
        released = bool(os.environ.get("ATTNLOOM_RELEASE"))
        metadata["optional-dependencies"] = {**self.config["extras"], "all": plugins_of(Path(self.root), released)}


def plugins_of(root: Path, released: bool) -> list[str]:
    """One requirement for each plugin folder under `root`, by name and version if `released`, else by path."""
    requirements = []
    for parent in PLUGIN_FOLDERS:
        for pyproject in sorted(root.resolve().glob(f"{parent}/*/pyproject.toml")):
            project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
            source = f"=={project['version']}" if released else f" @ {pyproject.parent.as_uri()}"
            requirements.append(project["name"] + source)
    return requirements
