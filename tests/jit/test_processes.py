"""Many processes and threads, and processes that die, at one cache."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from attnloom import jit
from attnloom.errors import CompileError
from attnloom.jit import cache

BUILD = textwrap.dedent(
    """
    import ctypes, sys
    from attnloom import jit
    for number in sys.argv[1:]:
        text = f'extern "C" __attribute__((visibility("default"))) int answer() {{ return {number}; }}'
        artifact = jit.build(jit.CompileUnit(name=f"unit{number}", sources={"unit.cc": text}))
        assert ctypes.CDLL(str(artifact.path)).answer() == int(number)
    """
)
WAIT = """
if [ -n "$compiling" ] && [ -e "{gate}" ]; then touch "{gate}.reached"; sleep 60; fi
"""


def heed_interrupts():
    """A test run that was started in the background hands on that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*numbers, **options):
    command = [sys.executable, "-c", BUILD, *map(str, numbers)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=heed_interrupts, **options)


def test_eight_processes_on_the_same_and_on_other_units(compiler):
    compiler.install()
    running = [start(0, number) for number in range(1, 9)]
    errors = [process.communicate()[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * 8, errors
    assert compiler.compiles == 9
    assert len(jit.entries()) == 9


def test_a_new_process_that_finds_all_never_calls_the_compiler(compiler, tmp_path):
    calls = tmp_path / "calls"
    compiler.install(f'echo x >> "{calls}"')
    assert start(1, 2).wait() == 0
    before = calls.read_text()
    assert before
    assert start(1, 2).wait() == 0
    assert calls.read_text() == before


def test_eight_threads_compile_once(compiler, unit):
    compiler.install()
    found = []
    threads = [threading.Thread(target=lambda: found.append(jit.build(unit()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({one.path for one in found}) == 1
    assert compiler.compiles == 1


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_dies_half_way_leaves_nothing_bad(cache_dir, compiler, tmp_path, blow):
    gate = tmp_path / "gate"
    gate.touch()
    compiler.install(WAIT.format(gate=gate))
    process = start(3, start_new_session=True)
    wait_for(tmp_path / "gate.reached")
    os.kill(process.pid, blow)
    process.wait()
    assert process.returncode != 0
    assert jit.entries() == []
    gate.unlink()
    later = start(3)
    assert later.wait() == 0, later.stderr.read()
    assert not list((cache_dir / "scratch").iterdir())
    assert len(jit.entries()) == 1
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the compiler that outlived it
    process.stderr.close()
    later.stderr.close()


def test_dead_scratch_goes_and_live_scratch_stays(cache_dir):
    cache.create(cache_dir)
    dead = cache_dir / "scratch" / "build-dead"
    dead.mkdir()
    (dead / "alive").touch()
    unborn = cache_dir / "scratch" / "build-unborn"
    unborn.mkdir()
    with cache.scratch(cache_dir) as first:
        assert not dead.exists() and not unborn.exists()
        with cache.scratch(cache_dir) as second:
            assert first.is_dir() and second.is_dir()
    assert not list((cache_dir / "scratch").iterdir())


@pytest.mark.parametrize(
    "how", ["kill -9 $$", "echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1"]
)
def test_a_killed_compiler_is_told_and_nothing_kept(compiler, unit, tmp_path, how):
    sick = tmp_path / "sick"
    sick.touch()
    compiler.install(f'if [ -n "$compiling" ] && [ -e "{sick}" ]; then {how}; fi')
    with pytest.raises(CompileError, match="the compiler was killed, most often for want of memory"):
        jit.build(unit())
    assert jit.entries() == []
    sick.unlink()
    assert jit.build(unit()).path.is_file()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('for last; do :; done; echo garbage > "$last"; exit 0', "wrote something that is no shared library"),
        ("exit 0", "wrote no library"),
        ('"$REAL" "$@"; for last; do :; done; truncate -s 5000 "$last"; exit 0', "wrote a truncated library"),
    ],
)
def test_a_lying_linker_is_caught(compiler, unit, body, message):
    compiler.install(f'case " $* " in *" -shared "*) {body};; esac')
    with pytest.raises(CompileError, match=message):
        jit.build(unit())
    assert jit.entries() == []


def test_a_silent_failure_still_has_a_log(compiler, unit):
    compiler.install('if [ -n "$compiling" ]; then exit 1; fi')
    with pytest.raises(CompileError, match="failed without an error message") as caught:
        jit.build(unit())
    assert caught.value.log.is_file()
