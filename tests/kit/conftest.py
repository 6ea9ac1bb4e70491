"""A folder of made-up installed plugins: right ones, written by the scaffold or below, and ones with a mistake each."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest
from attnloom import scaffold
from attnloom.errors import AttnloomError
from attnloom.plugins import Config, PluginSet
from attnloom.testing import run_suite

WINDOW_PLUGIN = """
from attnloom import hookimpl
from attnloom.variant import Param, TensorParam, Variant

WINDOW = Variant(
    name="@name@",
    struct="@package@::@Struct@",
    header="@name@.h",
    functors={"kv_range", "logits_mask", "logits_transform"},
    params=[
        Param("left", int, default=7, doc="Older positions that a query sees."),
        TensorParam("weights", shape=("*",), doc="Logit of each key."),
    ],
    example="@package@.example:example",
    abi=1,
    reference="@package@.reference:@Struct@",
    doc="A window, of even positions alone on odd heads, with a weight for each key.",
)


@hookimpl
def attnloom_variants():
    return [WINDOW]
"""
WINDOW_HEADER = """
#pragma once
#include <attnloom/variant.h>

namespace @package@ {

struct @Struct@ {
  static constexpr bool range_monotone = true;
  static constexpr bool range_head_uniform = true;

  template <class P>
  ATTNLOOM_FN attnloom::Range kv_range(const P& p, const attnloom::Site& s) const {
    return {s.q_pos - p.left, s.q_pos + 1};
  }
  template <class P>
  ATTNLOOM_FN bool logits_mask(const P& p, const attnloom::Site& s) const {
    const int distance = s.q_pos - s.kv_pos;
    return distance >= 0 && distance <= p.left && (s.qo_head % 2 == 0 || s.kv_pos % 2 == 0);
  }
  template <class P>
  ATTNLOOM_FN float logits_transform(const P& p, float logit, const attnloom::Site& s) const {
    return logit + p.weights(s.kv_index);
  }
};

}  // namespace @package@
"""
WINDOW_REFERENCE = """
import numpy as np


class @Struct@:
    def kv_range(self, p, site):
        pos = np.asarray(site.q_pos)
        return [(pos - p.left, pos + 1)]

    def logits_mask(self, p, site):
        distance = site.q_pos - site.kv_pos
        near = (distance >= 0) & (distance <= p.left)
        return near & ((site.qo_head % 2 == 0) | (site.kv_pos % 2 == 0))

    def logits_transform(self, p, x, site):
        return x + p.weights.astype(np.float64)[site.kv_index]
"""
WINDOW_EXAMPLE = """
import numpy as np


def example(spec, qo_lens, kv_lens):
    keys = int(np.max(kv_lens, initial=1))
    return {"weights": np.random.default_rng(0).standard_normal(keys).astype(np.float32)}
"""
WINDOW = {
    "src/@package@/__init__.py": "",
    "src/@package@/plugin.py": WINDOW_PLUGIN,
    "src/@package@/@name@.h": WINDOW_HEADER,
    "src/@package@/reference.py": WINDOW_REFERENCE,
    "src/@package@/example.py": WINDOW_EXAMPLE,
}


class Made:
    """Plugins as pip leaves them, in a folder that this process imports from."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir()

    def add(self, name: str, kind: str = "window", *edits: tuple[str, str, str], **metadata) -> scaffold.Names:
        """A plugin called `name`: a `"window"`, or what the scaffold writes of a kind, with `edits` to its files.

        Args:
            edits: `(file, old, new)`: the end of a file's path, text that stands in it, and what stands there instead;
                with an empty `old`, `new` is the whole file.
        """
        names = scaffold.Names(name)
        placeholders = names.placeholders("variant" if kind == "window" else kind)
        files = WINDOW if kind == "window" else scaffold.render(names, kind)
        files = {scaffold.fill(path, placeholders): scaffold.fill(text, placeholders) for path, text in files.items()}
        for file, old, new in edits:
            path = next((path for path in files if path.endswith(file)), f"src/{names.package}/{file}")
            old, new = (scaffold.fill(text, placeholders) for text in (old, new))
            assert not old or old in files[path], f"{old!r} is not in {path}"
            files[path] = files[path].replace(old, new, 1) if old else new
        for path, text in files.items():
            if path.startswith("src/"):
                target = self.path / path.removeprefix("src/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
        self.install(names, placeholders["@kind@"], **metadata)
        return names

    def install(
        self,
        names: scaffold.Names,
        kind: str,
        *,
        provides: tuple[str, ...] | None = None,
        requires: str = "attnloom>=0.0.1,<99",
        module: str | None = None,
        distribution: str | None = None,
    ) -> None:
        """The metadata of a plugin."""
        distribution = distribution or names.distribution
        module = module or f"{names.package}.plugin"
        provides = (f"{kind}.{names.name}",) if provides is None else provides
        info = self.path / f"{distribution.replace('-', '_')}-0.1.0.dist-info"
        info.mkdir()
        required = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.0\n{required}")
        lines = "".join(f"{item} = {module}\n" for item in provides)
        (info / "entry_points.txt").write_text(f"[attnloom]\n{names.name} = {module}\n\n[attnloom.provides]\n{lines}")
        importlib.invalidate_caches()

    def plugins(self, **config) -> PluginSet:
        """What is installed, these plugins included."""
        return PluginSet.from_config(Config(**config))


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("ATTNLOOM_CONFIG", "")
    yield Made(tmp_path / "site")
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def caught(made):
    """Whether a check fails a plugin that is wrong, and says why."""

    def caught(base, name, kind, check, says, *edits):
        if check == "compiles_for_devices" and shutil.which("nvcc") is None:
            pytest.skip("needs nvcc")
        made.add(name, kind, *edits)
        suite = type("Suite", (base,), {base.kind: name, "shrink": False})
        (outcome,) = run_suite(suite, (check,))
        assert outcome.status == "failed", f"{check}: {outcome.status} {outcome.message}"
        assert says in outcome.message

    return caught


@pytest.fixture
def told(made):
    """The one message that an action with a wrong plugin ends in; it has each of the given patterns."""

    def told(act, name, kind, *says, edits=(), **metadata):
        made.add(name, kind, *edits, **metadata)
        with pytest.raises(AttnloomError) as raised:
            act()
        text = str(raised.value)
        for pattern in (f"attnloom-{name.replace('_', '-')}", *says):
            assert re.search(pattern, text), f"{pattern!r} is not in: {text}"
        return text

    return told
