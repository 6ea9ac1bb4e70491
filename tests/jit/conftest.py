import os
import shutil
import textwrap
from pathlib import Path

import pytest
from attnloom import jit

TRIVIAL = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture(autouse=True)
def cache_dir(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own; what the process remembers of others is forgotten."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(folder))
    monkeypatch.delenv("ATTNLOOM_HOST_ISA", raising=False)
    jit.forget()
    yield folder / "jit"
    jit.forget()


@pytest.fixture
def real_compiler() -> str:
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("needs g++ or clang++")
    return found


@pytest.fixture
def compiler(tmp_path, monkeypatch, real_compiler):
    """Make a compiler of a shell script; `exec "$REAL" "$@"` is what it ends with. Every `-c` is counted."""

    class Compiler:
        def __init__(self):
            self.counts = tmp_path / "compiles.txt"

        def install(self, body: str = "") -> Path:
            path = tmp_path / "bin" / "fake-g++"
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                "#!/bin/sh\n"
                f'REAL="{real_compiler}"\n'
                f'case " $* " in *" -c "*) echo x >> "{self.counts}"; compiling=yes;; esac\n'
                f"{textwrap.dedent(body)}\n"
                'exec "$REAL" "$@"\n'
            )
            path.chmod(0o755)
            monkeypatch.setenv("CXX", str(path))
            return path

        @property
        def compiles(self) -> int:
            return len(self.counts.read_text().split()) if self.counts.exists() else 0

    return Compiler()


@pytest.fixture
def unit():
    """Make a light compile unit."""

    def make(name="answer", source=TRIVIAL, **fields):
        return jit.CompileUnit(name=name, sources={f"{name}.cc": source}, **fields)

    return make


@pytest.fixture
def no_process(monkeypatch):
    """From the call of the fixture's value on, starting a process fails the test."""

    def forbid():
        def refuse(*args, **_kwargs):
            raise AssertionError(f"a process was started: {args}")

        for module, name in ((os, "fork"), (os, "posix_spawn"), (os, "system")):
            monkeypatch.setattr(module, name, refuse)
        monkeypatch.setattr("subprocess.Popen.__init__", refuse)

    return forbid
