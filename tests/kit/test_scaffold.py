"""`attnloom plugins new` and `attnloom plugins check`, at the command line."""

from __future__ import annotations

import json
import tomllib

import pytest
from attnloom import scaffold
from attnloom.cli import main
from attnloom.errors import PluginError
from attnloom.plugins import Config, PluginSet

KINDS = ["variant", "storage-format", "tile-heuristic"]


@pytest.fixture
def plugins(monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CONFIG", "")
    return PluginSet.from_config(Config())


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_of_each_kind(plugins, tmp_path, kind):
    folder = scaffold.write_plugin("Far-Away", kind, tmp_path, plugins)
    assert folder.name == "attnloom-far-away"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "attnloom-far-away" and project["dependencies"] == ["attnloom>=0.1,<1"]
    points = project["entry-points"]
    assert points["attnloom"] == {"far_away": "attnloom_far_away.plugin"}
    assert points["attnloom.provides"] == {f"{kind.replace('-', '_')}.far_away": "attnloom_far_away.plugin"}
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert {"README.md", ".github/workflows/test.yml", "tests/test_far_away.py"} <= set(files)
    for path in folder.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")
    unfilled = [
        path for path in folder.rglob("*") if path.is_file() and "@" in path.read_text().replace("actions/", "")
    ]
    assert [path.name for path in unfilled if "@name" in path.read_text() or "@package" in path.read_text()] == []


@pytest.mark.parametrize("prefix", ["attnloom-", "attnloom_", ""])
def test_the_prefix_is_not_doubled(plugins, tmp_path, prefix):
    assert scaffold.write_plugin(f"{prefix}mine", "variant", tmp_path, plugins).name == "attnloom-mine"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "must be a letter"),
        ("7up", "must be a letter"),
        ("my window", "must be a letter"),
        ("../up", "must be a letter"),
        ("über", "must be a letter"),
        ("a__b", "must be a letter"),
        ("ends_", "must be a letter"),
        ("x" * 61, "at most 60"),
        ("lambda", "reserved word"),
        ("match", "reserved word"),
        ("template", "reserved word"),
        ("Namespace", "reserved word"),
        ("co_await", "reserved word"),
        ("none", "makes a class 'None'"),
        ("Math", "that of a system's header, math.h"),
        ("causal", "is taken: core"),
        ("rope", "is taken: rope (attnloom-rope"),
        ("Soft-Cap", "is taken"),
        ("page_table", "is taken"),
        ("scheduler", "can be imported here already"),
    ],
)
def test_names_that_cannot_be(plugins, tmp_path, name, says):
    with pytest.raises(PluginError) as caught:
        scaffold.write_plugin(name, "variant", tmp_path, plugins)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(plugins, tmp_path):
    folder = scaffold.write_plugin("mine", "variant", tmp_path, plugins)
    (folder / "README.md").write_text("my own words")
    with pytest.raises(PluginError, match="exists already; nothing was written"):
        scaffold.write_plugin("mine", "tile_heuristic", tmp_path, plugins)
    assert (folder / "README.md").read_text() == "my own words"
    (tmp_path / "attnloom-tie").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PluginError, match="exists already"):
        scaffold.write_plugin("tie", "variant", tmp_path, plugins)
    with pytest.raises(PluginError, match="is no folder"):
        scaffold.write_plugin("lost", "variant", tmp_path / "missing", plugins)


def test_what_cannot_be_written_leaves_nothing_behind(plugins, tmp_path, monkeypatch):
    write_text = scaffold.Path.write_text

    def full(path, text, **options):
        if path.suffix == ".h":
            raise OSError(28, "No space left on device")
        return write_text(path, text, **options)

    monkeypatch.setattr(scaffold.Path, "write_text", full)
    with pytest.raises(PluginError, match=r"attnloom-mine cannot be written: No space left on device"):
        scaffold.write_plugin("mine", "variant", tmp_path, plugins)
    assert list(tmp_path.iterdir()) == []


def test_a_kind_that_is_none(plugins, tmp_path):
    with pytest.raises(PluginError, match="kind 'format' is none of variant, storage-format, tile-heuristic"):
        scaffold.write_plugin("mine", "format", tmp_path, plugins)


def test_the_command_writes_and_says_what_next(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CONFIG", "")
    assert main(["plugins", "new", "told", "--kind", "tile-heuristic", "--dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "attnloom-told/src/attnloom_told/choose.py" in told and "pip install -e" in told
    assert main(["plugins", "new", "told", "--kind", "variant", "--dir", str(tmp_path)]) == 1
    assert "attnloom: error:" in capsys.readouterr().err


@pytest.fixture
def project(plugins, tmp_path, monkeypatch):
    """A project of a heuristic, whose checks need no compiler but for one."""
    import sys

    pytest.importorskip("hatchling")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield scaffold.write_plugin("folded", "tile_heuristic", tmp_path, plugins)
    for name in [name for name in sys.modules if name.startswith("attnloom_folded")]:
        del sys.modules[name]


CHECKS = ["--only", "metadata", "--only", "choices_say_why"]


def test_a_folder_is_checked_from_its_wheel(project, capsys):
    assert main(["plugins", "check", str(project), "--json", *CHECKS]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["checked"][0]["distribution"] == "attnloom-folded"
    assert [(one["check"], one["status"]) for one in report["checked"][0]["checks"]] == [
        ("metadata", "passed"),
        ("choices_say_why", "passed"),
    ]


def test_a_failure_is_told_and_is_the_exit_status(project, capsys):
    choose = project / "src/attnloom_folded/choose.py"
    choose.write_text(choose.read_text().replace("why=[", "why=[][:0] and ["))
    assert main(["plugins", "check", str(project), *CHECKS]) == 1
    told = capsys.readouterr().out
    assert "tile heuristic folded of folded (attnloom-folded 0.1.0)" in told
    assert "✓ metadata" in told and "✗ choices say why" in told and "does not say why it chooses" in told
    assert "1 passed, 0 skipped, 1 failed" in told


def test_a_folders_own_suites_say_how(project, capsys):
    (project / "tests/test_folded.py").write_text(
        "import pytest\nfrom attnloom.testing import TileHeuristicSuite\n\n\n"
        "class TestFolded(TileHeuristicSuite):\n    tile_heuristic = 'folded'\n    families = ('host', 'mma')\n\n"
        "    @pytest.mark.xfail(reason='no opinion of mma tiles, they say')\n"
        "    def test_choices_say_why(self):\n        assert self.families == ('host',)\n\n"
        "    def test_with_a_fixture(self, tmp_path):\n        pass\n"
    )
    (project / "tests/test_broken.py").write_text("import nothing_of_this_name\n")
    assert main(["plugins", "check", str(project), *CHECKS]) == 0
    told = capsys.readouterr().out
    assert "expected to fail: no opinion of mma tiles, they say" in told
    assert "test_broken.py is left out, it cannot be imported: ModuleNotFoundError" in told
    assert "1 passed, 2 skipped, 0 failed" in told


def test_a_plugin_that_does_not_load_is_one_line(project, capsys):
    plugin = project / "src/attnloom_folded/plugin.py"
    plugin.write_text("import nothing_of_this_name\n")
    assert main(["plugins", "check", str(project)]) == 1
    told = capsys.readouterr().out
    assert "✗ loads" in told and "plugin.py:1" in told and "0 passed, 0 skipped, 1 failed" in told


def test_what_the_wheel_forgets_is_found(project, capsys):
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + '\n[tool.hatch.build]\nexclude = ["choose.py"]\n')
    assert main(["plugins", "check", str(project), "--json", "--only", "metadata"]) == 1
    (check,) = json.loads(capsys.readouterr().out)["checked"][0]["checks"]
    assert "holds no module 'attnloom_folded.choose'" in check["message"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "holds no project"),
        ("[project", "is no TOML"),
        (
            "[project]\nname = 'x'\nversion = '1'\n[build-system]\nbuild-backend = 'no_such_backend'\n",
            "cannot be built",
        ),
        ("[project]\nname = 'x'\n[build-system]\nrequires = []\nbuild-backend = 'hatchling.build'\n", "does not build"),
    ],
)
def test_folders_that_hold_no_plugin(tmp_path, capsys, text, says):
    pytest.importorskip("hatchling")
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    assert main(["plugins", "check", f"{tmp_path}/"]) == 1
    assert says in capsys.readouterr().err


def test_names_that_are_not_installed(capsys, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CONFIG", "")
    assert main(["plugins", "check", "sofft_cap"]) == 1
    assert "did you mean 'soft_cap'?" in capsys.readouterr().err


def test_a_check_that_there_is_not(capsys, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CONFIG", "")
    assert main(["plugins", "check", "soft_cap", "--only", "descriptr"]) == 1
    told = capsys.readouterr()
    assert "no check 'descriptr'; did you mean 'descriptor'?" in told.err and not told.out


def test_an_installed_plugin_is_checked_by_name(capsys, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CONFIG", "")
    assert main(["plugins", "check", "attnloom-soft-cap", "--json", "--only", "descriptor"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(one["kind"], one["name"]) for one in report["checked"]] == [("variant", "soft_cap")]


def test_checks_by_a_part_of_their_names(capsys, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CONFIG", "")
    assert main(["plugins", "check", "soft_cap", "--json", "--only", "descript", "--only", "metadata"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["checked"]
    assert {one["check"] for one in report["checks"]} == {"descriptor", "metadata"}
