"""Real installs: a plugin from a folder is there at once and gone when uninstalled; the wheel holds what it must."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("hatchling", reason="the tests of packaging need the extra `dev`")

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "my-checkers"
version = "1.0"
dependencies = ["attnloom>=0.1,<1"]

[project.entry-points.attnloom]
checkers = "my_checkers.plugin"

[project.entry-points."attnloom.provides"]
"variant.checkers" = "my_checkers.plugin"
"""

PLUGIN = """
from attnloom import hookimpl
from attnloom.variant import Variant

@hookimpl
def attnloom_variants():
    yield Variant(name="checkers", struct="Checkers", header="checkers.h", functors={"logits_mask"},
                  reference="my_checkers.reference:Checkers")
"""

HEADER = """
#pragma once
#include <attnloom/variant.h>
struct Checkers {
  template <class P>
  ATTNLOOM_FN bool logits_mask(const P&, const attnloom::Site& s) const { return (s.q_pos + s.kv_pos) % 2 == 0; }
};
"""

USE = """
import attnloom
plugins = attnloom.plugins.PluginSet.default()
try:
    variant = plugins.variant("checkers")
except attnloom.UnknownNameError as error:
    print("gone:", error)
else:
    print("there:", variant.package, (plugins.header_dir(variant) / variant.header).read_text().count("Checkers"))
"""


def run(*command, **kwargs):
    environment = {**os.environ, "ATTNLOOM_CONFIG": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The Python of a new environment that sees this one's packages."""
    folder = tmp_path_factory.mktemp("an environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # site.addsitedir, unlike a plain path, follows the .pth files of editable installs too.
    here = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    Path(site, "parent.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    return python


def test_a_plugin_is_there_when_installed_and_gone_when_uninstalled(environment, tmp_path):
    package = tmp_path / "my plugin#1" / "my_checkers"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(PYPROJECT)
    for name, text in (("__init__.py", ""), ("plugin.py", PLUGIN), ("checkers.h", HEADER)):
        (package / name).write_text(text)
    assert "gone:" in run(environment, "-c", USE, cwd=package.parent)
    run(environment, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", package.parent)
    assert run(environment, "-c", USE, cwd=tmp_path) == "there: my_checkers 1\n"
    listed = json.loads(run(environment, "-m", "attnloom", "plugins", "list", "--json", cwd=tmp_path))
    assert [record["version"] for record in listed if record["name"] == "checkers"] == ["1.0"]
    run(environment, "-m", "pip", "uninstall", "-y", "my-checkers")
    assert run(environment, "-c", USE, cwd=tmp_path).startswith("gone: no variant 'checkers'")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what the packages are built from, in a folder with an awkward name."""
    copy = tmp_path_factory.mktemp("a b#c%20d")
    ignore = shutil.ignore_patterns("__pycache__", ".*", "build", "dist")
    for name in ("core", "scheduler", "plugins", "storage_formats"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(folder: Path, target: Path, **environ) -> zipfile.ZipFile:
    """The wheel of a project folder."""
    target.mkdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env={**os.environ, **environ})
    return zipfile.ZipFile(next(target.glob("*.whl")))


def metadata(wheel: zipfile.ZipFile) -> str:
    return wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()


def test_the_core_wheel_holds_everything_that_is_needed_to_compile(checkout, tmp_path):
    names = build(checkout, tmp_path / "out").namelist()
    for folder in ("core/attnloom", "scheduler/attnloom_scheduler"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".h", ".cpp", ".cc", ".cuh", ".py", ".typed"):
                assert path.relative_to(ROOT / folder).as_posix() in "\n".join(names), path
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"attnloom", "attnloom_scheduler"}


def test_the_extra_all_is_every_plugin_of_the_checkout_by_path(checkout, tmp_path):
    folders = [*(checkout / "plugins/builtin").iterdir(), *(checkout / "storage_formats").iterdir()]
    text = metadata(build(checkout, tmp_path / "out", ATTNLOOM_RELEASE=""))
    lines = [line for line in text.splitlines() if "extra == 'all'" in line]
    assert len(lines) == len(folders) >= 11
    for folder in folders:
        assert any(f"@ {folder.as_uri()} ;" in line for line in lines), folder
    assert "%20b%23c%2520d" in lines[0]


def test_a_release_names_no_path(checkout, tmp_path):
    text = metadata(build(checkout, tmp_path / "out", ATTNLOOM_RELEASE="1"))
    assert "Requires-Dist: attnloom-rope==0.1.0; extra == 'all'" in text
    assert "file:" not in text and str(checkout) not in text


@pytest.mark.parametrize("folder", sorted(ROOT.glob("plugins/builtin/*")) + sorted(ROOT.glob("storage_formats/*")),
                         ids=lambda path: path.name)  # fmt: skip
def test_a_plugin_folder_names_things_alike(folder):
    import tomllib

    name = folder.name
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"attnloom-{name.replace('_', '-')}"
    assert project["dependencies"] == ["attnloom>=0.1,<1"]
    points = project["entry-points"]
    assert points["attnloom"] == {name: f"attnloom_{name}.plugin"}
    kind = "storage_format" if folder.parent.name == "storage_formats" else "variant"
    assert points["attnloom.provides"] == {f"{kind}.{name}": f"attnloom_{name}.plugin"}
    assert (folder / "src" / f"attnloom_{name}" / "plugin.py").is_file()


def test_the_version_of_the_code_is_the_version_of_the_distribution():
    import attnloom
    from importlib_metadata import version

    assert version("attnloom") == attnloom.__version__
