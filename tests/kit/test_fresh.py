"""A new environment, from wheels alone: the core, each plugin of strangers by itself, all together, each one broken.

The environment sees the packages of this one, attnloom and its plugins excepted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.parent.name for path in ROOT.glob("plugins/examples/*/pyproject.toml"))
NEW = {"fresh-variant": "variant", "fresh-format": "storage-format", "fresh-tiles": "tile-heuristic"}
TUTORIAL = "strided"
LEFT_OUT = ("compiles_for_devices", "composes_in_both_orders", "functors_are_given")
"""Checks that compile most and that others here or in test_mutants.py stand for; ATTNLOOM_TEST_FULL=1 runs them too."""
pytest.importorskip("hatchling", reason="the tests of packaging need the extra `dev`")

OURS = ("attnloom", "_editable_impl_attnloom", "__editable__")


class Environment:
    """A virtual environment, and the projects that are installed in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self.bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        self.site = Path(self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        parent = folder / "packages"
        parent.mkdir()
        for entry in reversed(sys.path):
            if entry.endswith(("site-packages", "dist-packages")) and Path(entry).is_dir():
                link_packages(Path(entry), parent)
        (self.site / "parent.pth").write_text(f"{parent}\n")

    def start(self, *arguments, cwd: Path | None = None, **environ) -> subprocess.Popen:
        """The environment's Python."""
        inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        environment = {**inherited, "ATTNLOOM_CONFIG": "", "OMP_NUM_THREADS": "1", **environ}
        command = [str(self.bin / "python"), *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=cwd or self.folder, env=environment, **pipes)

    def run(self, *arguments, status: int = 0, **options) -> str:
        """What the environment's Python prints."""
        process = self.start(*arguments, **options)
        told, _ = process.communicate()
        assert process.returncode == status, told
        return told

    def install(self, wheels: list[Path]) -> None:
        """Install wheels, as pip does without its checks."""
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self.site)


def link_packages(source: Path, target: Path) -> None:
    """Links to all packages but ours."""
    for path in source.iterdir():
        if path.name.startswith(OURS) or path.suffix == ".pth" or path.name == "__pycache__":
            continue
        link = target / path.name
        if link.is_symlink():
            link.unlink()
        link.symlink_to(path)


def build(folder: Path, target: Path) -> Path:
    """The wheel of a project."""
    from attnloom.testing.packages import build_wheel

    return build_wheel(folder, target)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The environment with the core in it, and the projects that are not installed yet."""
    folder = tmp_path_factory.mktemp("fresh")
    environment = Environment(folder)
    ignore = shutil.ignore_patterns("__pycache__", ".*", "build", "dist")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("core", "scheduler", "plugins", "storage_formats"):
        shutil.copytree(ROOT / name, checkout / name, ignore=ignore)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    environment.install([build(checkout, folder / "core-wheel")])
    for name, kind in NEW.items():
        environment.run("-m", "attnloom", "plugins", "new", name, "--kind", kind, "--dir", folder)
    environment.run("-m", "attnloom", "plugins", "new", TUTORIAL, "--kind", "variant", "--dir", folder)
    for path, text in tutorial().items():
        assert (folder / f"attnloom-{TUTORIAL}" / path).is_file(), f"docs/plugins.md writes {path}, which is not there"
        (folder / f"attnloom-{TUTORIAL}" / path).write_text(text)
    environment.projects = [checkout / "plugins/examples" / name for name in EXAMPLES]
    environment.projects += [folder / f"attnloom-{name}" for name in (*NEW, TUTORIAL)]
    environment.wheels = [build(project, folder / "wheels") for project in environment.projects]
    return environment


def tutorial() -> dict[str, str]:
    """The files that the tutorial of docs/plugins.md writes, by path."""
    text = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^File `(\S+)`:\n+```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def names(listed: str) -> list[str]:
    return [record["name"] for record in json.loads(listed)]


def test_the_core_alone_lists_no_plugin(fresh):
    assert names(fresh.run("-m", "attnloom", "plugins", "list", "--json")) == []


def test_each_plugin_by_itself(fresh, tmp_path):
    for project, wheel in zip(fresh.projects, fresh.wheels, strict=True):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path / project.name)
        listed = fresh.run("-m", "attnloom", "plugins", "list", "--json", PYTHONPATH=str(tmp_path / project.name))
        (record,) = json.loads(listed)
        assert record["distribution"].replace("-", "_").endswith(record["name"]) and record["state"] == "found"


def test_all_together_pass_their_own_tests(fresh):
    fresh.install(fresh.wheels)
    expected = sorted([*EXAMPLES, *(name.replace("-", "_") for name in (*NEW, TUTORIAL))])
    assert sorted(names(fresh.run("-m", "attnloom", "plugins", "list", "--json"))) == expected
    options = ("-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "-c", os.devnull)
    if not os.environ.get("ATTNLOOM_TEST_FULL"):
        options += ("-k", " and ".join(f"not {check}" for check in LEFT_OUT))
    halves = fresh.projects[::2], fresh.projects[1::2]
    running = [fresh.start(*options, *(project / "tests" for project in half), cwd=half[0]) for half in halves]
    for process in running:
        told, _ = process.communicate()
        assert process.returncode == 0, told
        assert "attnloom: import attnloom_" in told, "the time of imports is reported"


def test_what_is_installed_is_checked_by_name(fresh):
    fresh.install(fresh.wheels)
    checks = ("--only", "metadata", "--only", "descriptor", "--only", "no_other_plugin_has_the_name")
    told = fresh.run("-m", "attnloom", "plugins", "check", "attnloom-streaming-llm", *checks)
    assert "3 passed, 0 skipped, 0 failed" in told


def test_the_tutorial_writes_what_its_reader_needs():
    assert sorted(tutorial()) == [
        "src/attnloom_strided/plugin.py",
        "src/attnloom_strided/reference.py",
        "src/attnloom_strided/strided.h",
        "tests/test_strided.py",
    ]


def test_a_check_that_is_overridden_stops_the_run(fresh, tmp_path):
    fresh.install(fresh.wheels)
    (tmp_path / "test_weak.py").write_text(
        "from attnloom.testing import TileHeuristicSuite\n\n\n"
        "class TestWeak(TileHeuristicSuite):\n    tile_heuristic = 'fresh_tiles'\n\n"
        "    def test_choices_say_why(self):\n        pass\n"
    )
    told = fresh.run("-m", "pytest", "-c", os.devnull, "--import-mode=importlib", tmp_path, status=4)
    assert "TestWeak.test_choices_say_why overrides a check of the kit" in told


DEVICE = """
from attnloom.compose import compose
from attnloom.plugins import Config, PluginSet
from attnloom.testing.device import compile_for_devices
from attnloom.testing.functors import FunctorSpec

plugins = PluginSet.from_config(Config())
compile_for_devices(compose(plugins.names("variant"), spec=FunctorSpec(), plugins=plugins))
"""


def test_their_functors_compile_for_devices(fresh):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    fresh.install(fresh.wheels)
    fresh.run("-c", DEVICE)


BREAK = """
import json, sys
from pathlib import Path
from attnloom.plugins import Config, PluginSet

found = [record for record in PluginSet.from_config(Config()).records()[1:]]
report = {}
for broken in found:
    source = Path(broken.location, *broken.module.split(".")).with_suffix(".py")
    text = source.read_text()
    source.write_text("raise OSError('libmissing.so: cannot open')\\n")
    for module in [name for name in sys.modules if name.startswith("attnloom_") and "scheduler" not in name]:
        del sys.modules[module]
    plugins = PluginSet.from_config(Config())
    report[broken.name] = {}
    for record in found:
        for kind, name in record.provides:
            try:
                getattr(plugins, kind)(name)
            except Exception as error:
                report[broken.name][record.name] = f"{type(error).__name__}: {error}"
    source.write_text(text)
print(json.dumps(report))
"""


def test_each_one_broken_leaves_the_others_working(fresh):
    fresh.install(fresh.wheels)
    report = json.loads(fresh.run("-B", "-c", BREAK).strip().splitlines()[-1])
    assert len(report) == len(fresh.projects)
    for broken, failures in report.items():
        assert set(failures) <= {broken}
        if broken != "compile_journal":
            assert "libmissing.so: cannot open" in failures[broken] and "plugin.py:1" in failures[broken]
