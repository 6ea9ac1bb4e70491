import json

import pytest

typer = pytest.importorskip("typer")
from attnloom import jit  # noqa: E402
from attnloom.cli import cache as command  # noqa: E402
from typer.testing import CliRunner  # noqa: E402


@pytest.fixture
def invoke():
    app = typer.Typer()
    command.register(app)
    app.command("other")(lambda: None)

    def call(*words):
        result = CliRunner().invoke(app, ["cache", *words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_list_and_clear(invoke, cache_dir, unit, real_compiler):
    assert invoke("list") == f"{cache_dir}: empty\n"
    jit.build(unit("one", owners={"/x": "rope"}))
    jit.build(unit("another"))
    text = invoke("list")
    assert "2 libraries" in text and "[rope]" in text and jit.host_toolchain().isa in text
    listed = json.loads(invoke("list", "--json"))
    assert listed["folder"] == str(cache_dir) and [row["name"] for row in listed["entries"]] == ["another", "one"]
    assert listed["bytes"] == sum(row["bytes"] for row in listed["entries"])
    cleared = json.loads(invoke("clear", "--json"))
    assert cleared["removed"] == 2 and cleared["bytes"] == listed["bytes"]
    assert invoke("clear") == f"{cache_dir}: removed 0 libraries, 0 B\n"


def test_an_unusable_entry_is_listed_as_such(invoke, unit, real_compiler):
    path = jit.build(unit()).path
    path.unlink()
    assert "unusable: no library; rebuilt when needed" in invoke("list")
