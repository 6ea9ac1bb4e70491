"""Libraries built ahead of time, used where there is no compiler at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from attnloom import jit
from attnloom.cli import main
from attnloom.errors import ConfigError
from attnloom.jit import shipped

WORDS = ["compile", "--head-dim", "16", "--num-qo-heads", "2", "--num-kv-heads", "1", "--dtype", "float32"]
RUN = """
import attnloom, torch
spec = attnloom.AttentionSpec(["causal"], num_qo_heads=2, num_kv_heads=1, head_dim=16, dtype="float32")
wrapper = attnloom.AttentionWrapper(spec, num_threads=1)
wrapper.plan(attnloom.storage_format("dense").build_index([3], [5]))
kv = torch.ones(1, 5, 1, 16)
print(wrapper.kernel.artifact.path, wrapper.run(torch.ones(3, 2, 16), (kv, kv)).sum().item())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("shipped") / "kernels"
    before = {name: os.environ.get(name) for name in ("ATTNLOOM_CONFIG",)}
    os.environ["ATTNLOOM_CONFIG"] = ""
    try:
        assert main([*WORDS, "--output", str(place)]) == 0
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return place


def run(tmp_path, script=RUN, **environment):
    bare = {name: value for name, value in os.environ.items() if name not in ("CXX", "CUDA_HOME", "PATH")}
    bare |= {"PATH": str(tmp_path), "ATTNLOOM_CACHE_DIR": str(tmp_path / "cache"), "ATTNLOOM_CONFIG": "", **environment}
    return subprocess.run([sys.executable, "-c", script], env=bare, capture_output=True, text=True)


def test_no_compiler_is_needed(folder, tmp_path):
    done = run(tmp_path, ATTNLOOM_SHIPPED=str(folder))
    assert done.returncode == 0, done.stderr
    path, total = done.stdout.split()
    assert path.startswith(str(folder)) and float(total) == 96.0
    assert not (tmp_path / "cache" / "jit").exists()


def test_kernels_for_decode_alone(tmp_path):
    place = tmp_path / "kernels"
    assert main([*WORDS, "--max-qo-len", "1", "--output", str(place)]) == 0
    limited = RUN.replace("num_threads=1", "num_threads=1, max_qo_len=1").replace("([3], [5])", "([1], [5])")
    done = run(tmp_path, limited.replace("ones(3,", "ones(1,"), ATTNLOOM_SHIPPED=str(place))
    assert done.returncode == 0, done.stderr
    path, total = done.stdout.split()
    assert path.startswith(str(place)) and float(total) == 32.0
    done = run(tmp_path, ATTNLOOM_SHIPPED=str(place))
    assert done.returncode and "no C++ compiler was found" in done.stderr
    assert f"for the cpu is not in {place} (ATTNLOOM_SHIPPED), and cannot be compiled" in done.stderr


def test_without_the_folder_a_compiler_is_missed(folder, tmp_path):
    done = run(tmp_path)
    assert done.returncode and "no C++ compiler was found" in done.stderr


def test_a_damaged_library_is_passed_over(folder, tmp_path):
    import shutil

    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)
    library = next(copied.glob("host_*/*.so"))
    library.chmod(0o644)
    library.write_bytes(library.read_bytes()[:-1])
    done = run(tmp_path, ATTNLOOM_SHIPPED=str(copied))
    assert done.returncode and "is passed over: its library is not the one that was built" in done.stderr


def test_what_is_said_of_a_library(folder):
    manifest = json.loads(next(folder.glob("host_*/manifest.json")).read_text())
    assert manifest["target"] == jit.host_toolchain().isa and manifest["target"] in shipped.host_targets()


def test_folders_that_others_may_write(monkeypatch, tmp_path):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("ATTNLOOM_SHIPPED", str(tmp_path))
    with pytest.raises(ConfigError, match="ATTNLOOM_SHIPPED names .*, which others may write to"):
        shipped.folders()
    monkeypatch.setenv("ATTNLOOM_SHIPPED", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        shipped.folders()
