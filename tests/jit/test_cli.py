import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from attnloom import jit
from attnloom.cli import main
from attnloom.jit.shipped import shipped_key
from attnloom.jit.unit import unit_key
from attnloom.targets import CudaTarget


@pytest.fixture
def command(capsys):
    def call(*words):
        assert main(["cache", *words]) == 0
        return capsys.readouterr().out

    return call


def test_list_and_clear(command, cache_dir, unit, real_compiler):
    assert command("list") == f"{cache_dir}: empty\n"
    jit.build(unit("one", owners={"/x": "rope", "/core": "attnloom"}))
    jit.build(unit("another"))
    text = command("list")
    assert "2 libraries" in text and "[rope]" in text and jit.host_toolchain().isa in text
    listed = json.loads(command("list", "--json"))
    assert listed["folder"] == str(cache_dir) and [row["name"] for row in listed["entries"]] == ["another", "one"]
    assert listed["bytes"] == sum(row["bytes"] for row in listed["entries"])
    cleared = json.loads(command("clear", "--json"))
    assert cleared["removed"] == 2 and cleared["bytes"] == listed["bytes"]
    assert command("clear") == f"{cache_dir}: removed 0 libraries, 0 B\n"


def test_libraries_of_one_name_are_told_apart(command, unit, real_compiler):
    details = ["mma 16x64", "mma 16x64 + wgmma 128x64", ""]
    for number, detail in enumerate(details):
        jit.build(unit("same", source=f"int number = {number};", detail=detail))
    text = command("list")
    assert all(f"same ({detail}) " in text for detail in details if detail) and "same  " in text
    assert sorted(row["detail"] for row in json.loads(command("list", "--json"))["entries"]) == sorted(details)


@pytest.mark.parametrize("shipped", [False, True], ids=["cached", "shipped"])
def test_both_kernels_of_a_wrapper_are_told_apart(monkeypatch, capsys, tmp_path, shipped):
    monkeypatch.setattr(CudaTarget, "toolchain", lambda *_: SimpleNamespace(command=["nvcc"], isa="sm_90a"))

    def build_all(wanted, *, on_start, **_):
        for unit, _ in wanted:
            on_start(unit)
        return [jit.Artifact(tmp_path / unit.name, "", True, 0.0) for unit, _ in wanted]

    monkeypatch.setattr(jit, "build_all", build_all)
    monkeypatch.setattr("attnloom.jit.shipped.add", lambda folder, *_: folder)
    assert main(["compile", "--arch", "sm_90a", *(["--output", str(tmp_path)] if shipped else [])]) == 0
    said = capsys.readouterr().out.splitlines()
    tiles = "mma 16x64 + wgmma 128x64", "mma 16x128 + wgmma 128x128"
    for beginning, end in (("compiling kernel ", " ..."), ("", ": found")):
        lines = [f"{beginning}cuda_causal_bfloat16_bfloat16_d128 ({one}){end}" for one in tiles]
        assert [sum(line.startswith(wanted) for line in said) for wanted in lines] == [1, 1], said


def test_a_detail_is_no_part_of_a_key(unit):
    one, other = unit(detail="mma 16x64"), unit()
    toolchain = jit.host_toolchain()
    assert one == other and hash(one) == hash(other) and unit_key(one, toolchain) == unit_key(other, toolchain)
    assert shipped_key(one, "sm_90a") == shipped_key(other, "sm_90a")


def test_an_unusable_entry_is_listed_as_such(command, unit, real_compiler):
    jit.build(unit()).path.unlink()
    assert "unusable: no library; rebuilt when needed" in command("list")


def test_a_folder_that_others_may_write_is_an_error_in_one_line(cache_dir, capsys):
    cache_dir.mkdir(parents=True)
    cache_dir.chmod(0o777)
    assert main(["cache", "list"]) == 1
    assert capsys.readouterr().err.startswith("attnloom: error: the cache folder")


def test_the_cache_command_is_light():
    code = (
        "import sys; from attnloom.cli import main; main(['cache', 'list']); "
        "print({'torch', 'typer', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_kernels_are_compiled_ahead_of_time(capsys, real_compiler, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CONFIG", "")
    words = ["compile", "--head-dim", "16", "--num-qo-heads", "2", "--num-kv-heads", "1", "--dtype", "float32"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "compiler " in said and "compiling kernel host_causal" in said and "compiled in" in said
    assert {"binding", "scheduler", "kernel"} == {entry.kind for entry in jit.entries()}
    jit.forget()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "found" in said and "compiling" not in said
