"""The command: quick and unbreakable where it lists, lazy everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from attnloom import cli

GUARD = """
import sys
from attnloom.cli import main
status = main(sys.argv[1:])
heavy = sorted({"torch", "numpy", "typer", "rich", "pluggy", "packaging"} & set(sys.modules))
heavy += [m for m in sys.modules if m.startswith("fake_")]
print("HEAVY", heavy)
sys.exit(status)
"""


def attnloom(site, *arguments, stdout=subprocess.PIPE, **environ):
    """Run the command in a process that sees `site`."""
    path = os.pathsep.join(filter(None, [str(site.path), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "ATTNLOOM_CONFIG": "", **environ}
    environment = {key: value for key, value in environment.items() if value is not None}
    command = [sys.executable, "-c", GUARD, *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, timeout=120)


# conda #12096, #12149: the commands that one needs when a plugin is broken do not need plugins
def test_listing_works_whatever_is_broken_and_imports_nothing(site):
    site.add("broken", "raise SystemExit('imported')")
    site.add("old", "raise SystemExit('imported')", requires=("attnloom<0.0.1",))
    site.add("corrupt", metadata="nonsense")
    site.add("clash", distribution="fake-one"), site.add("clash", distribution="fake-two")
    done = attnloom(site, "plugins", "list", ATTNLOOM_DISABLE_PLUGINS="broken")
    assert done.returncode == 0, done.stderr
    for text in (
        "broken",
        "disabled",
        "ATTNLOOM_DISABLE_PLUGINS",
        "incompatible",
        "it needs attnloom<0.0.1",
        "corrupt",
    ):
        assert text in done.stdout
    assert "clash: variant 'clash' is offered by clash (fake-one 0.1.0) and clash (fake-two 0.1.0)" in done.stdout
    assert "HEAVY []" in done.stdout
    assert "imported" not in done.stdout + done.stderr


def test_json_holds_everything(site):
    site.add("windowed", version="7.1")
    done = attnloom(site, "plugins", "list", "--json", "--all")
    records = {record["name"]: record for record in json.loads(done.stdout.partition("HEAVY")[0])}
    assert records["core"]["provides"] == ["storage_format.dense", "tile_heuristic.auto", "variant.causal"]
    assert records["windowed"] == {
        "name": "windowed",
        "distribution": "fake-windowed",
        "version": "7.1",
        "state": "found",
        "reason": "",
        "provides": ["variant.windowed"],
        "module": "fake_fake_windowed.plugin",
        "package": "fake_fake_windowed",
        "location": str(site.path),
    }


@pytest.mark.parametrize("name", ["windowed", "fake-windowed", "variant.windowed", "Windowed"])
def test_show(site, name):
    site.add("windowed", "1 / 0")
    done = attnloom(site, "plugins", "show", name)
    assert done.returncode == 0 and "fake_fake_windowed.plugin" in done.stdout and "HEAVY []" in done.stdout


def test_show_tells_what_is_configured(site, tmp_path):
    site.add("p", "raise SystemExit('imported')", provides=())
    (tmp_path / "c.toml").write_text("[plugin.p]\nspan = 64\n")
    done = attnloom(site, "plugins", "show", "p", ATTNLOOM_CONFIG=str(tmp_path / "c.toml"))
    assert done.returncode == 0 and "settings      span = 64" in done.stdout and "HEAVY []" in done.stdout


def test_show_unknown(site):
    site.add("windowed")
    done = attnloom(site, "plugins", "show", "windowd")
    assert done.returncode == 1
    assert done.stderr.startswith("attnloom: error: no plugin 'windowd'; did you mean 'windowed'")
    assert "Traceback" not in done.stderr


def test_a_failure_of_a_plugin_that_is_asked_for_is_printed_once(site):
    site.add("broken", "raise OSError('no such library')")
    done = attnloom(site, "explain", "--variants", "broken")
    assert done.returncode == 1 and done.stderr.count("no such library") == 1, done.stderr
    assert done.stderr.startswith("attnloom: error: variant 'broken' cannot be had: plugin broken")


@pytest.mark.parametrize(
    "arguments", [["plugins", "list"], ["cache", "list"], ["doctor"], ["--help"], ["plugins", "-h"]]
)
def test_a_reader_that_has_gone_is_no_failure_to_tell(site, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = attnloom(site, *arguments, stdout=writer)
    os.close(writer)
    assert done.stderr == "", done.stderr


def test_a_wrong_configuration_is_told_and_the_list_still_shown(site, tmp_path):
    site.add("windowed")
    (tmp_path / "c.toml").write_text("[plugins]\nenabled = []\n")
    done = attnloom(site, "plugins", "list", ATTNLOOM_CONFIG=str(tmp_path / "c.toml"))
    assert done.returncode == 1 and "did you mean 'enable'" in done.stderr and "windowed" in done.stdout


class TestDoctor:
    def test_everything_fine(self, site, tmp_path):
        (tmp_path / "c.toml").write_text('[stacks.s]\nvariants = ["causal"]\n')
        done = attnloom(
            site, "doctor", ATTNLOOM_CONFIG=str(tmp_path / "c.toml"), ATTNLOOM_CACHE_DIR=str(tmp_path / "k")
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for text in (
            str(tmp_path / "c.toml"),
            str(tmp_path / "k"),
            "{'s': ['causal']}",
            "no problem found",
            "HEAVY []",
        ):
            assert text in done.stdout

    def test_problems(self, site, tmp_path):
        site.add("old", requires=("attnloom<0.0.1",))
        (tmp_path / "c.toml").write_text('[plugins]\nenable = ["rop"]\n')
        done = attnloom(site, "doctor", ATTNLOOM_CONFIG=str(tmp_path / "c.toml"), PATH=str(tmp_path), CXX=None)
        assert done.returncode == 1
        for text in ("plugin 'rop' is enabled, and no such", "it needs attnloom<0.0.1", "no C++ compiler was found"):
            assert text in done.stdout

    def test_a_compiler_that_does_not_run(self, site, tmp_path):
        (tmp_path / "g++").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "g++").chmod(0o755)
        done = attnloom(site, "doctor", CXX=str(tmp_path / "g++"))
        assert done.returncode == 1 and "problem: the C++ compiler does not run" in done.stdout
        done = attnloom(site, "doctor", CXX="no-such-compiler")
        assert done.returncode == 1 and "problem: CXX is 'no-such-compiler'" in done.stdout

    def test_json(self, site):
        done = attnloom(site, "doctor", "--json")
        report = json.loads(done.stdout.partition("HEAVY")[0])
        assert {"attnloom", "compiler", "configuration", "plugins", "problems"} <= set(report)

    # poetry #10389: an editable install does not see new entry points until it is installed again
    def test_a_stale_editable_install(self, site, tmp_path):
        info = site.add("windowed")
        source = tmp_path / "source folder#1"
        source.mkdir()
        (source / "pyproject.toml").write_text(
            '[project]\nname = "fake-windowed"\n[project.entry-points.attnloom]\nnew = "fake_fake_windowed.plugin"\n'
        )
        url = {"url": source.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(url))
        done = attnloom(site, "doctor")
        assert done.returncode == 1 and "fake-windowed is installed in editable form" in done.stdout

    # uv #14891: a checkout whose plugin was declared after it was installed is in no list
    def test_an_editable_install_from_before_it_was_a_plugin(self, site, tmp_path):
        info = site.add("windowed", entry_points="[console_scripts]\nx = y:z\n")
        (tmp_path / "pyproject.toml").write_text(
            '[project]\nname = "fake-windowed"\n'
            '[project.entry-points.attnloom]\nwindowed = "fake_fake_windowed.plugin"\n'
        )
        url = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(url))
        done = attnloom(site, "doctor")
        assert done.returncode == 1 and "its entry points ('windowed') have changed since" in done.stdout
        assert f"pip install -e {tmp_path}" in done.stdout


HELLO = """
from attnloom.hookspecs import hookimpl

@hookimpl
def attnloom_commands(register):
    def hello(name: str = "world"):
        "Greet somebody."
        print("hello,", name)

    register("say-hello", hello)
"""


class TestPluginCommands:
    def test_run_and_shown_in_the_help(self, site):
        site.add("greeter", HELLO, provides=())
        done = attnloom(site, "say_hello", "--name", "you")
        assert done.returncode == 0 and "hello, you" in done.stdout, done.stderr
        shown = attnloom(site, "--help")
        assert shown.returncode == 0 and "Greet somebody." in shown.stdout, shown.stderr

    def test_a_known_command_loads_no_plugin(self, site):
        site.add("greeter", "raise SystemExit('imported')", provides=())
        done = attnloom(site, "cache", "--help")
        assert done.returncode == 0 and "imported" not in done.stdout + done.stderr

    def test_a_broken_plugin_is_told_and_the_help_still_shown(self, site):
        site.add("broken", "1 / 0", provides=())
        done = attnloom(site, "--help")
        assert done.returncode == 0 and "doctor" in done.stdout and "ZeroDivisionError" in done.stderr

    def test_two_plugins_with_one_command(self, site, tmp_path):
        site.add("one", HELLO, provides=()), site.add("two", HELLO, provides=())
        done = attnloom(site, "say-hello")
        assert done.returncode == 1 and "one (fake-one 0.1.0) and two (fake-two 0.1.0)" in done.stderr
        (tmp_path / "c.toml").write_text('[prefer]\n"command:say-hello" = "two"\n')
        done = attnloom(site, "say-hello", ATTNLOOM_CONFIG=str(tmp_path / "c.toml"))
        assert done.returncode == 0 and "hello, world" in done.stdout

    def test_unknown(self, site):
        done = attnloom(site, "docter")
        assert done.returncode == 1 and "no command 'docter'; did you mean 'doctor'" in done.stderr


def test_usage_errors_have_status_2(site):
    assert attnloom(site, "plugins").returncode == 2
    assert attnloom(site, "plugins", "lst").returncode == 2


def test_version(capsys):
    import attnloom as package

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"attnloom {package.__version__}\n"


# opentelemetry #3054, airflow #29625: what listing costs is what it imports; nothing here grows with the plugins
def test_listing_thirty_plugins_imports_a_handful_of_modules(site):
    for number in range(30):
        site.add(f"p{number}", "raise SystemExit('imported')")
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom attnloom.cli import main\nmain(['plugins', 'list'])\n"
        "own = {m for m in set(sys.modules) - before if m.startswith('attnloom')}\n"
        "print('OWN', len(own), 'ALL', len(set(sys.modules) - before))\n"
        "print('CODE', sorted(own & {'attnloom.' + m for m in ('variant', 'index', 'tile', 'builtin', 'hookspecs')}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(site.path), "ATTNLOOM_CONFIG": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    own, everything = map(int, done.stdout.partition("OWN")[2].split("\n")[0].replace("ALL", "").split())
    assert done.stdout.count("fake-p") == 30 and "CODE []" in done.stdout
    assert own <= 20 and everything <= 220, (own, everything)


# llm #732, #949: no plugin of this project may make listing or look-up slow
def test_the_installed_plugins_are_light():
    code = (
        "import sys\nfrom attnloom.plugins import PluginSet, Config\nplugins = PluginSet(Config())\n"
        "for record in plugins.records():\n"
        "    for kind, name in record.provides:\n"
        "        getattr(plugins, kind)(name)\n"
        "print({m for m in ('torch', 'numpy', 'tvm_ffi', 'transformers') if m in sys.modules} or 'light')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "light\n", done.stdout + done.stderr
