import json
import os
import shutil
import stat
import subprocess
import time

import pytest
from attnloom import jit
from attnloom.errors import CompileError, ConfigError
from attnloom.jit import cache

INCLUDING = '#include <plug.h>\nextern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }\n'


def call(artifact):
    import ctypes

    return ctypes.CDLL(str(artifact.path)).answer()


def tree(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_built_once_then_found_without_a_process_or_a_write(cache_dir, compiler, unit, no_process):
    compiler.install()
    first = jit.build(unit())
    assert not first.hit and first.seconds > 0 and call(first) == 42
    for path in cache_dir.rglob("*"):
        os.utime(path, (0, 0))
    before = tree(cache_dir)
    no_process()
    jit.forget()
    second = jit.build(unit())
    assert second.hit and second.path == first.path and second.key == first.key
    assert tree(cache_dir) == before
    assert jit.build(unit()).seconds == 0
    assert compiler.compiles == 1


def test_a_hit_in_the_process_is_a_look_up(unit, real_compiler):
    made = unit()
    jit.build(made)
    begin = time.perf_counter()
    for _ in range(1000):
        jit.build(made)
    assert (time.perf_counter() - begin) / 1000 < 100e-6  # 5 us on a quiet machine


def test_the_entry_is_private_and_says_what_it_is(cache_dir, unit, real_compiler):
    artifact = jit.build(unit(kind="kernel", owners={"/somewhere": "soft_cap"}))
    assert stat.S_IMODE(cache_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(artifact.path.parent.stat().st_mode) == 0o700
    manifest = json.loads((artifact.path.parent / "manifest.json").read_text())
    assert manifest["name"] == "answer" and manifest["owners"] == ["soft_cap"]
    assert manifest["compiler"].split()[0] in ("gcc", "clang") and "-O3" in manifest["flags"]
    assert manifest["created"].endswith("+00:00") and manifest["sha256"] == cache.file_hash(artifact.path)
    assert (artifact.path.parent / "answer.cc").is_file()
    assert not list((cache_dir / "scratch").iterdir())


def test_headers_count_by_content_not_by_time_or_place(tmp_path, compiler, unit):
    compiler.install()
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "deep").mkdir(parents=True)
    (here / "plug.h").write_text("#include <deep/inner.h>\n")
    (here / "deep" / "inner.h").write_text("#define ANSWER 1\n")
    (here / "notes.md").write_text("not a header")
    assert call(jit.build(unit(source=INCLUDING, include_dirs=[here]))) == 1
    shutil.copytree(here, there)
    os.utime(here / "plug.h", (1, 1))
    (here / "notes.md").write_text("still none")
    jit.forget()
    assert jit.build(unit(source=INCLUDING, include_dirs=[here])).hit
    assert jit.build(unit(source=INCLUDING, include_dirs=[there])).hit
    (there / "deep" / "inner.h").write_text("#define ANSWER 2\n")
    os.utime(there / "deep" / "inner.h", (1, 1))
    jit.forget()
    changed = jit.build(unit(source=INCLUDING, include_dirs=[there]))
    assert not changed.hit and call(changed) == 2
    assert compiler.compiles == 2


def test_all_that_matters_is_in_the_key(tmp_path, unit, real_compiler):
    from attnloom.jit.unit import unit_key

    chain = jit.host_toolchain()
    units = [
        unit(),
        unit(name="other"),
        unit(source="int x;"),
        unit(flags=["-DX"]),
        unit(flags=["-D", "X"]),
        unit(link_flags=["-DX"]),
        unit(kind="binding"),
        unit(salt="1"),
    ]
    keys = [unit_key(one, chain) for one in units] + [unit_key(unit(), jit.host_toolchain(debug=True))]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "damage", ["truncate", "flip", "no manifest", "bad manifest", "other key", "no library", "empty"]
)
def test_a_corrupt_entry_is_rebuilt_and_said_once(cache_dir, compiler, unit, damage):
    compiler.install()
    path = jit.build(unit()).path
    manifest = path.parent / "manifest.json"
    if damage == "truncate":
        os.truncate(path, 100)
    elif damage == "flip":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "bad manifest":
        manifest.write_text('{"name": "ans')
    elif damage == "other key":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "key": "0" * 64}))
    elif damage == "no library":
        path.unlink()
    else:
        for file in path.parent.iterdir():
            file.unlink()
    jit.forget()
    with pytest.warns(RuntimeWarning, match="the cached library answer is rebuilt: it") as said:
        rebuilt = jit.build(unit())
    assert len(said) == 1 and not rebuilt.hit and call(rebuilt) == 42
    jit.forget()
    assert jit.build(unit()).hit
    assert compiler.compiles == 2
    assert not list((cache_dir / "scratch").iterdir())


def test_a_folder_of_another_user_is_refused(cache_dir, unit, monkeypatch, real_compiler):
    jit.build(unit())
    jit.forget()
    monkeypatch.setattr(os, "geteuid", lambda: cache_dir.stat().st_uid + 1)
    owner = cache_dir.stat().st_uid
    with pytest.raises(
        ConfigError, match=rf"belongs to user {owner}, but you are user {owner + 1}.*ATTNLOOM_CACHE_DIR"
    ):
        jit.build(unit())
    with pytest.raises(ConfigError, match="belongs to user"):
        jit.entries()
    with pytest.raises(ConfigError, match="belongs to user"):
        jit.clear()


def test_a_folder_that_others_may_write_is_refused(cache_dir, unit):
    cache_dir.mkdir(parents=True)
    cache_dir.chmod(0o777)
    with pytest.raises(ConfigError, match=r"mode 0777.*chmod 700"):
        jit.build(unit())


def test_a_file_in_the_way(cache_dir, unit):
    cache_dir.parent.mkdir()
    cache_dir.write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        jit.build(unit())


@pytest.mark.parametrize("folder", ["with space", "a#b%20", "dollar$HOME", "quote'\"", "colon:x", "ünï"])
def test_any_path_will_do(tmp_path, monkeypatch, unit, real_compiler, folder):
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path / folder / "cache"))
    headers = tmp_path / folder / "include"
    headers.mkdir(parents=True)
    (headers / "plug.h").write_text("#define ANSWER 7\n")
    assert call(jit.build(unit(source=INCLUDING, include_dirs=[headers]))) == 7


def test_a_blank_cache_folder_is_none(monkeypatch):
    from attnloom.jit import cache

    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", "  ")
    blank = cache.root()
    monkeypatch.delenv("ATTNLOOM_CACHE_DIR")
    assert blank == cache.root()


def test_a_missing_include_folder_is_named(tmp_path, unit, real_compiler):
    with pytest.raises(CompileError, match=r"include folder .*gone does not exist"):
        jit.build(unit(include_dirs=[tmp_path / "gone"]))


@pytest.mark.parametrize("name", ["", "a/b", "../x", "-x", "x" * 101, "a b"])
def test_names_are_validated(unit, name):
    with pytest.raises(CompileError, match="plain file name"):
        jit.CompileUnit(name=name, sources={"a.cc": ""})


@pytest.mark.parametrize("sources", [{}, {"a.txt": ""}, {"../a.cc": ""}, {"$x.cc": ""}])
def test_sources_are_validated(sources):
    with pytest.raises(CompileError, match=r"compile unit 'x'"):
        jit.CompileUnit(name="x", sources=sources)


def test_several_sources_are_linked(real_compiler):
    sources = {
        "one.cc": 'int two(); extern "C" __attribute__((visibility("default"))) int answer() { return two(); }',
        "two.cpp": "int two() { return 5; }",
    }
    assert call(jit.build(jit.CompileUnit(name="pair", sources=sources))) == 5


def test_listing_and_clearing(cache_dir, unit, real_compiler):
    assert jit.entries() == [] and jit.clear() == (0, 0)
    paths = [jit.build(unit(name)).path for name in ("b", "a")]
    with pytest.raises(CompileError):
        jit.build(unit("broken", source="int x = ;"))
    found = jit.entries()
    assert [entry.name for entry in found] == ["a", "b"] and all(entry.problem is None for entry in found)
    assert found[0].path == paths[1] and found[0].bytes > 1000
    paths[0].unlink()
    assert jit.entries()[1].problem == "no library"
    (paths[1].parent / "manifest.json").write_text("{")
    assert any(entry.problem == "no readable manifest" for entry in jit.entries())
    count, size = jit.clear()
    assert count == 2 and size > 1000 and jit.entries() == []
    assert not list((cache_dir / "logs").glob("*"))
    assert not jit.build(unit("a")).hit


def test_clearing_leaves_a_build_under_way_alone(cache_dir, compiler, unit, tmp_path):
    import threading

    gate = tmp_path / "gate"
    compiler.install(
        f'if [ -n "$compiling" ]; then touch "{gate}.reached"; while [ ! -e "{gate}" ]; do sleep 0.02; done; fi'
    )
    built = []
    thread = threading.Thread(target=lambda: built.append(jit.build(unit())))
    thread.start()
    while not (tmp_path / "gate.reached").exists():
        assert thread.is_alive()
        time.sleep(0.01)
    jit.clear()
    gate.touch()
    thread.join()
    assert call(built[0]) == 42


def test_callbacks_tell_of_compiles_only(unit, real_compiler):
    started, reports = [], []
    for _ in range(2):
        jit.forget()
        made = unit(owners={"/x": "rope", "/y": "rope"}, detail="mma 16x64")
        jit.build(made, on_start=started.append, on_compiled=reports.append)
    assert [one.name for one in started] == ["answer"]
    (report,) = reports
    assert report.owners == ("rope",) and report.path.is_file() and report.seconds > 0
    assert (report.name, report.kind, report.detail) == ("answer", "kernel", "mma 16x64")


def test_several_units_are_built_at_a_time_and_the_first_error_is_raised(unit, real_compiler):
    wanted = [(unit("a"), None), (unit("bad", source="int x = ;", detail="of tiles"), None), (unit("c"), None)]
    with pytest.raises(CompileError, match="kernel bad \\(of tiles\\) does not compile"):
        jit.build_all(wanted)
    assert [entry.name for entry in jit.entries()] == ["a", "c"]
    assert [one.hit for one in jit.build_all([wanted[2], wanted[0]])] == [True, True]
    assert jit.build_all([]) == []


def test_a_full_disk_leaves_nothing_bad(tmp_path, monkeypatch, compiler, unit):
    full = tmp_path / "full"
    full.touch()
    compiler.install(
        f'if [ -n "$compiling" ] && [ -e "{full}" ]; then\n'
        'echo "fatal error: error writing to answer.cc.o: No space left on device" >&2; exit 1; fi'
    )
    with pytest.raises(CompileError, match=r"the disk is full: free some space, run `attnloom cache clear`"):
        jit.build(unit())
    full.unlink()
    assert call(jit.build(unit())) == 42


def test_a_disk_that_is_really_full(tmp_path, monkeypatch, unit, real_compiler):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k,mode=700", "none", disk]).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(disk))
        with pytest.raises(CompileError, match="disk is full"):
            jit.build(unit())
        assert not jit.entries()
    finally:
        subprocess.run(["umount", disk], check=True)
