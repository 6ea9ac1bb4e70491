from types import SimpleNamespace

import pytest
from attnloom.plugins import Config, PluginSet
from attnloom.testing import HooksSuite
from attnloom_compile_journal.journal import Journal


class TestCompileJournal(HooksSuite):
    plugin = "compile_journal"


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "deep" / "journal.jsonl")


def report(name):
    return SimpleNamespace(name=name, kind="kernel", seconds=1.234, compiler="gcc 12", owners=("attnloom-rope",))


def test_what_is_compiled_is_shown(path, capsys):
    plugins = PluginSet(Config(settings={"compile_journal": {"path": path}}))
    plugins.notify_compiled(report("host_rope"))
    plugins.notify_compiled(report("host_more"))
    Journal(path).show(last=1)
    told = capsys.readouterr().out
    assert "host_more  (attnloom-rope)" in told and "host_rope" not in told and "2 compile(s)" in told


def test_the_command(path, capsys):
    ((_, command),) = PluginSet(Config(settings={"compile_journal": {"path": path}})).commands()["journal"]
    command(last=3)
    assert f"0 compile(s) in {path}" in capsys.readouterr().out
