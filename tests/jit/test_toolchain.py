import os
import subprocess
import sys

import pytest
from attnloom import jit
from attnloom.errors import CompileError, ConfigError, UnsupportedError
from attnloom.jit import toolchain

V2 = {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}
V3 = V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
BF16 = V4 | {"avx512_bf16"}


@pytest.mark.parametrize(
    ("flags", "isa", "options"),
    [
        (set(), "generic", ()),
        (V2, "x86-64-v2", ("-march=x86-64-v2",)),
        (V3, "x86-64-v3", ("-march=x86-64-v3",)),
        (V4 - {"avx512vl"}, "x86-64-v3", ("-march=x86-64-v3",)),
        (V4, "x86-64-v4", ("-march=x86-64-v4",)),
        (BF16, "x86-64-v4+avx512bf16", ("-march=x86-64-v4", "-mavx512bf16")),
        (V3 | {"avx512_bf16"}, "x86-64-v3", ("-march=x86-64-v3",)),
    ],
)
def test_the_cpu_decides_the_instruction_set(flags, isa, options):
    assert toolchain.pick_isa(None, "x86_64", frozenset(flags)) == isa
    assert toolchain.isa_flags(isa, "x86_64") == options


def test_other_architectures_are_native():
    assert toolchain.pick_isa("", "aarch64", frozenset()) == "native"
    assert toolchain.isa_flags("native", "aarch64") == ("-mcpu=native",)
    assert toolchain.isa_flags("native", "x86_64") == ("-march=native",)
    with pytest.raises(ConfigError, match=r"x86-64-v3.*aarch64"):
        toolchain.pick_isa("x86-64-v3", "aarch64", frozenset())


def test_an_override_is_held_to_the_cpu():
    assert toolchain.pick_isa("x86-64-v2", "x86_64", frozenset(V4)) == "x86-64-v2"
    with pytest.raises(UnsupportedError, match=r"'x86-64-v4'.*this CPU has x86-64-v3 \(it lacks avx512bw, .*lower it"):
        toolchain.pick_isa("x86-64-v4", "x86_64", frozenset(V3))
    with pytest.raises(ConfigError, match=r"'avx3'; it may be one of x86-64-v2, .*native"):
        toolchain.pick_isa("avx3", "x86_64", frozenset(V4))


def test_the_override_reaches_the_flags_and_the_key(monkeypatch, unit, real_compiler):
    from attnloom.jit.unit import unit_key

    best = jit.host_toolchain()
    monkeypatch.setenv("ATTNLOOM_HOST_ISA", "generic")
    lowered = jit.host_toolchain()
    assert lowered.isa == "generic"
    assert not any(flag.startswith("-m") for flag in lowered.flags)
    assert unit_key(unit(), best) != unit_key(unit(), lowered) or best.isa == "generic"


@pytest.mark.parametrize("debug", [False, True])
def test_no_flag_that_breaks_infinities_or_signed_zeros(real_compiler, debug):
    flags = jit.host_toolchain(debug).flags
    forbidden = {"-ffast-math", "-Ofast", "-ffinite-math-only", "-fno-signed-zeros", "-funsafe-math-optimizations"}
    assert not forbidden & set(flags)
    assert "-freciprocal-math" not in flags and "-fassociative-math" not in flags
    assert {"-std=c++20", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"} <= set(flags)
    assert ("-DATTNLOOM_DEBUG" in flags) is debug


def test_cxx_comes_first_and_may_hold_a_launcher(monkeypatch, compiler):
    path = compiler.install()
    assert jit.host_toolchain().command == (str(path),)
    monkeypatch.setenv("CXX", f"env {path} -pipe")
    command = jit.host_toolchain().command
    assert os.path.basename(command[0]) == "env" and command[1:] == (str(path), "-pipe")


def test_a_launcher_with_options_compiles(monkeypatch, compiler, unit):
    path = compiler.install()
    monkeypatch.setenv("CXX", f"env {path} -pipe")
    assert jit.build(unit()).path.is_file()


def test_no_compiler_says_what_was_looked_for(monkeypatch, tmp_path, unit):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        CompileError, match=r"CXX \(not set\), then for g\+\+ and clang\+\+ on PATH .*apt install g\+\+"
    ):
        jit.build(unit())
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(CompileError, match=r"CXX is 'no-such-compiler -O2', but 'no-such-compiler' is no program"):
        jit.build(unit())


@pytest.mark.parametrize(("said", "floor"), [("gcc 10 2 1", "gcc >= 11"), ("clang 13 0 1", "clang >= 14")])
def test_an_old_compiler_is_refused_with_both_versions(compiler, unit, said, floor):
    compiler.install(f'echo "{said}"; exit 0')
    with pytest.raises(CompileError, match=rf"is {said.replace(' ', '.').replace('.', ' ', 1)}, but {floor} is needed"):
        jit.build(unit())
    assert compiler.compiles == 0


def test_a_program_that_is_no_compiler(compiler, unit):
    compiler.install("echo 'bad CPU type' >&2; exit 3")
    with pytest.raises(CompileError, match=r"does not work.*bad CPU type"):
        jit.build(unit())


def test_identity_is_content_not_time(compiler):
    path = compiler.install()
    first = toolchain.compiler_identity((str(path),), "")
    os.utime(path, (1, 1))
    assert toolchain.compiler_identity((str(path),), "") == first
    path.write_text(path.read_text() + "# another version\n")
    assert toolchain.compiler_identity((str(path),), "") != first


def test_the_compiler_behind_a_launcher_counts(tmp_path):
    front, behind = tmp_path / "front", tmp_path / "behind"
    for folder in (front, behind):
        folder.mkdir()
    (front / "ccache").write_text("launcher")
    (front / "g++").symlink_to(front / "ccache")
    (behind / "g++").write_text("version 1")
    for file in (front / "ccache", behind / "g++"):
        file.chmod(0o755)
    path = f"{front}{os.pathsep}{behind}"
    first = toolchain.compiler_identity((str(front / "g++"),), path)
    (behind / "g++").write_text("version 2")
    assert toolchain.compiler_identity((str(front / "g++"),), path) != first


def test_other_systems_are_told(monkeypatch):
    toolchain._host_toolchain.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedError, match="Linux only; this is darwin"):
        jit.host_toolchain()
    toolchain._host_toolchain.cache_clear()


USE_AFTER_FREE = """
extern "C" __attribute__((visibility("default"))) int touch(int i) {
  int* p = new int[4]();
  delete[] (i ? p : new int[4]);
  return p[0];
}
"""
LOAD = """
import ctypes, sys
from attnloom import jit
unit = jit.CompileUnit(name="freed", sources={"freed.cc": open(sys.argv[1]).read()})
chain = jit.host_toolchain(debug=True)
artifact = jit.build(unit, chain)
chain.require_loadable()
print("value", ctypes.CDLL(str(artifact.path)).touch(int(sys.argv[2])))
"""


def test_a_debug_build_runs_as_its_message_says(tmp_path, real_compiler):
    source, script = tmp_path / "freed.cc", tmp_path / "load.py"
    source.write_text(USE_AFTER_FREE)
    script.write_text(LOAD)

    def run(command: str, index: int):
        # Into files: the symbolizer of Clang's ASan may outlive the process and hold a pipe open.
        with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
            done = subprocess.run(f"{command} {script} {source} {index}", shell=True, stdout=out, stderr=err)
        done.stdout, done.stderr = (tmp_path / "out").read_text(), (tmp_path / "err").read_text()
        return done

    refused = run(sys.executable, 0)
    assert refused.returncode == 1 and "UnsupportedError" in refused.stderr
    advised = next(line for line in refused.stderr.splitlines() if "LD_PRELOAD=" in line).strip()
    command = advised.replace(f"{os.path.basename(sys.executable)} ...", sys.executable)
    good = run(command, 0)
    assert good.returncode == 0 and "value 0" in good.stdout, good.stderr
    bad = run(command, 1)
    assert bad.returncode != 0 and "heap-use-after-free" in bad.stderr
    assert "freed.cc:5" in bad.stderr
