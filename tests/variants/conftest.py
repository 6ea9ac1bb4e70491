from pathlib import Path
from types import SimpleNamespace

import pytest
from attnloom.testing.functors import FunctorSpec
from attnloom.variant import Variant


class LocalPlugins:
    """Stands in for a `PluginSet`: variants written by a test, each in a folder of its own, and those installed."""

    def __init__(self, root: Path):
        self._root = root
        self._own: dict[str, tuple[Variant, Path]] = {}

    def add(self, name: str, code: str, *, struct: str | None = None, header: str | None = None, **fields) -> Variant:
        folder = self._root / f"pkg_{name}"
        folder.mkdir(exist_ok=True)
        header = header or f"{name}.h"
        (folder / header).write_text(f"#pragma once\n#include <attnloom/variant.h>\n{code}\n")
        fields = {"reference": "nowhere:Nothing", "package": f"pkg_{name}", **fields}
        struct = struct or "".join(part.title() for part in name.split("_"))
        self._own[name] = Variant(name=name, struct=struct, header=header, **fields), folder
        return self._own[name][0]

    def variant(self, name):
        return self._own[name][0] if name in self._own else _installed().variant(name)

    def provider(self, kind, name):
        if name in self._own:
            return SimpleNamespace(name=name, distribution=f"dist-{name.replace('_', '-')}", version="1", package="")
        return _installed().provider(kind, name)

    def header_dir(self, variant):
        return self._own[variant.name][1] if variant.name in self._own else _installed().header_dir(variant)


def _installed():
    from attnloom.plugins import PluginSet

    return PluginSet.default()


@pytest.fixture
def plugins(tmp_path):
    return LocalPlugins(tmp_path)


@pytest.fixture
def spec():
    return FunctorSpec(num_qo_heads=6, num_kv_heads=2, head_dim=16, head_dim_v=8)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    """Compiled harnesses are shared by the session and leave the user's cache alone."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("ATTNLOOM_CONFIG", "")
    yield
    patch.undo()
