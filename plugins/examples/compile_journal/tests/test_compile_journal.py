from types import SimpleNamespace

import pytest
from attnloom.testing import HooksSuite
from attnloom_compile_journal import journal


class TestCompileJournal(HooksSuite):
    plugin = "compile_journal"


@pytest.fixture(autouse=True)
def _journal(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_JOURNAL", str(tmp_path / "deep" / "journal.jsonl"))


def report(name):
    return SimpleNamespace(name=name, kind="kernel", seconds=1.234, compiler="gcc 12", owners=("attnloom-rope",))


def test_what_is_compiled_is_shown(attnloom_plugins, capsys):
    attnloom_plugins.notify_compiled(report("host_rope"))
    attnloom_plugins.notify_compiled(report("host_more"))
    journal.show(last=1)
    told = capsys.readouterr().out
    assert "host_more  (attnloom-rope)" in told and "host_rope" not in told and "2 compile(s)" in told


def test_the_command(capsys):
    from attnloom.cli import main

    assert main(["journal", "--last", "3"]) == 0
    assert "0 compile(s) in " in capsys.readouterr().out
