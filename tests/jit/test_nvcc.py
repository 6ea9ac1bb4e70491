"""Kernels compiled for GPUs that need not be there: no spills, errors that say what to do, a compiler from pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import attnloom
import pytest
from attnloom import jit
from attnloom.engines.long import long_spec
from attnloom.errors import CompileError, UnsupportedError
from attnloom.jit import nvcc
from attnloom.jit.resources import read_resources
from attnloom.kernel import describe
from attnloom.limits import Limits
from attnloom.targets import CudaTarget

HEADS = {"num_qo_heads": 32, "num_kv_heads": 8}
E4M3 = {"kv_dtype": "float8_e4m3fn"}
SHIPPED = {
    "causal": ("sm_90a", attnloom.AttentionSpec(["causal"], head_dim=128, **HEADS)),
    "qk_norm": ("sm_90a", attnloom.AttentionSpec(["qk_norm", "rope", "causal"], head_dim=128, **E4M3, **HEADS)),
    "e4m3": ("sm_89", attnloom.AttentionSpec(["causal"], head_dim=128, **E4M3, **HEADS)),
    "e4m3_d256": ("sm_80", attnloom.AttentionSpec(["causal"], head_dim=256, **E4M3, **HEADS)),
    "d192": ("sm_90a", attnloom.AttentionSpec(["causal"], head_dim=192, **HEADS)),
    "d192_128": ("sm_80", attnloom.AttentionSpec(["causal"], head_dim=192, head_dim_v=128, **HEADS)),
    "d256": ("sm_90a", attnloom.AttentionSpec(["causal"], head_dim=256, **HEADS)),
    "rope_part": (
        "sm_90a",
        attnloom.AttentionSpec(["qk_norm", "rope", "causal"], head_dim=128, params={"rope.rotary_dim": 96}, **HEADS),
    ),
    "rope_d256": ("sm_90a", attnloom.AttentionSpec(["rope", "causal"], head_dim=256, **HEADS)),
    "rows32": ("sm_90a", attnloom.AttentionSpec(["causal"], 64, 2, head_dim=128)),
    "rope": ("sm_80", attnloom.AttentionSpec(["rope", "causal", "soft_cap"], head_dim=64, dtype="float16", **HEADS)),
}
SHARED = {"sm_80": 164 * 1024, "sm_89": 100 * 1024, "sm_90a": 228 * 1024}
"""Shared memory of a multiprocessor; the driver keeps 1,024 bytes of it a block."""

WGMMA = {
    "soft_cap": attnloom.AttentionSpec(["causal", "soft_cap"], head_dim=128, **HEADS),
    "alibi": attnloom.AttentionSpec(["causal", "alibi"], head_dim=128, **HEADS),
    "rope": attnloom.AttentionSpec(["rope", "sliding_window", "sinks"], head_dim=128, dtype="float16", **HEADS),
    "e5m2": attnloom.AttentionSpec(["causal"], head_dim=128, kv_dtype="float8_e5m2", **HEADS),
    **{f"d{dim}": attnloom.AttentionSpec(["causal"], head_dim=dim, **HEADS) for dim in (64, 80, 96, 112)},
}

LONG = {name: WGMMA[name] for name in ("soft_cap", "alibi", "rope", "d64")} | {"causal": SHIPPED["causal"][1]}
"""Wrappers of two kernels."""


def has_nvcc():
    try:
        nvcc.find_nvcc(os.environ.get("CUDA_HOME"), os.environ.get("PATH"))
    except CompileError:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="no nvcc: neither CUDA_HOME, PATH nor pip has one")


@pytest.fixture(scope="module")
def reports():
    units = [(describe(spec, CudaTarget(arch))[2], jit.cuda_toolchain(arch)) for arch, spec in SHIPPED.values()]
    artifacts = jit.build_all(units)
    entries = {entry.path: entry for entry in jit.entries()}
    return {name: entries[artifact.path] for name, artifact in zip(SHIPPED, artifacts, strict=True)}


@needs_nvcc
@pytest.mark.parametrize("name", SHIPPED)
def test_no_kernel_spills(reports, name):
    kernels = reports[name].resources
    assert len(kernels) >= 2 and {kernel["arch"] for kernel in kernels} == {SHIPPED[name][0]}
    for kernel in kernels:
        assert kernel["spill_stores"] == kernel["spill_loads"] == 0, kernel
        assert 16 <= kernel["registers"] <= 255, kernel


@needs_nvcc
@pytest.mark.parametrize("name", SHIPPED)
def test_blocks_find_the_shared_memory_that_they_are_planned_for(reports, name):
    arch, spec = SHIPPED[name]
    target = CudaTarget(arch)
    config = target.config(spec, describe(spec, target)[1])
    for kernel in reports[name].resources:
        assert config.blocks * (config.shared_bytes + kernel["shared"] + 1024) <= SHARED[arch], kernel


@needs_nvcc
def test_products_of_a_warpgroup_overlap():
    target = CudaTarget("sm_90a")
    described = {name: describe(spec, target) for name, spec in WGMMA.items()}
    assert all(tiles.tall.family == "wgmma" for _, tiles, _ in described.values())
    artifacts = jit.build_all([(unit, target.toolchain(False)) for _, _, unit in described.values()])
    entries = {entry.path: entry for entry in jit.entries()}
    for name, artifact in zip(described, artifacts, strict=True):
        for kernel in entries[artifact.path].resources:
            told = name, kernel
            assert kernel["spill_stores"] == kernel["spill_loads"] == kernel["serialized"] == 0, told
            assert kernel["registers"] <= 255, told


@needs_nvcc
def test_second_kernels_hold_what_they_need():
    target, units = CudaTarget("sm_90a"), {}
    for name, spec in LONG.items():
        composition, tiles, _ = describe(spec, target)
        second = long_spec(spec, tiles, composition.functors, Limits())
        units[name] = target.config(second, second.tile), describe(second, target)[2]
    artifacts = jit.build_all([(unit, target.toolchain(False)) for _, unit in units.values()])
    entries = {entry.path: entry for entry in jit.entries()}
    for (name, (config, _)), artifact in zip(units.items(), artifacts, strict=True):
        for kernel in entries[artifact.path].resources:
            told = name, kernel
            assert not kernel["spill_stores"] and not kernel["spill_loads"], told
            assert not kernel["serialized"] and kernel["registers"] <= 255, told
            assert config.shared_bytes + kernel["shared"] + 1024 <= SHARED["sm_90a"], told


def test_wgmma_is_of_one_architecture():
    tile = attnloom.Tile(128, 64, "wgmma")
    spec = attnloom.AttentionSpec(["causal"], head_dim=128, tile=tile, **HEADS)
    assert describe(spec, CudaTarget("sm_90a"))[1].short == tile
    for arch in ("sm_80", "sm_90", "sm_100"):
        with pytest.raises(UnsupportedError, match=f"tile family 'wgmma' does not run on {arch}; there it is 'mma'"):
            describe(spec, CudaTarget(arch))
    for changes, message in (
        ({"head_dim": 192}, "head_dim up to 128"),
        ({"tile": attnloom.Tile(64, 64, "wgmma")}, "128 x 64"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            describe(
                attnloom.AttentionSpec(["causal"], **{"head_dim": 128, "tile": tile, **HEADS, **changes}),
                CudaTarget("sm_90a"),
            )


@needs_nvcc
def test_a_kernel_loads_without_a_gpu(reports):
    handle = jit.load(jit.Artifact(reports["causal"].path, "", True, 0.0))
    assert all(handle.symbol(name) for name in ("attnloom_run", "attnloom_grid", "attnloom_ranges", "attnloom_error"))


@needs_nvcc
def test_an_error_in_device_code_names_its_place():
    unit = jit.CompileUnit(name="wrong", kind="test", sources={"kernel.cu": "\n__global__ void k() { nothing(); }\n"})
    with pytest.raises(CompileError, match=r'kernel.cu:2: .*identifier "nothing" is undefined'):
        jit.build(unit, jit.cuda_toolchain("sm_80"))


@pytest.mark.parametrize("arch", ["sm_70", "sm_75"])
def test_architectures_that_are_too_old(arch):
    with pytest.raises(UnsupportedError, match=r"compute capability 7\.\d: the CUDA kernels need 8\.0"):
        CudaTarget(arch)


def test_architectures_that_are_none():
    with pytest.raises(UnsupportedError, match="architecture 'ampere' is not of the form sm_80"):
        CudaTarget("ampere")
    assert [jit.arch_of(*pair) for pair in ((8, 0), (8, 9), (9, 0), (12, 0))] == ["sm_80", "sm_89", "sm_90a", "sm_120"]


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvcc, "packaged_toolkits", lambda: [])
    with pytest.raises(CompileError, match=r'no CUDA compiler was found: .*pip install "attnloom\[cuda\]"'):
        jit.cuda_toolchain("sm_80")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(CompileError, match="CUDA_HOME is .*nvcc is no program"):
        jit.cuda_toolchain("sm_80")


def fake_nvcc(folder, version="12.8", ptxas="12.8", codes="sm_80 sm_89 sm_90a"):
    for name, told in (("nvcc", version), ("ptxas", ptxas)):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        lines = [f'if [ "$1" = --list-gpu-code ]; then echo {codes}; exit; fi', f"echo release {told}, V{told}.9"]
        program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        program.chmod(0o755)
    return {"CUDA_HOME": str(folder)}


@pytest.mark.parametrize(
    "told, error, message",
    [
        ({"version": "12.3"}, CompileError, "is of CUDA 12.3, but CUDA >= 12.4 is needed"),
        ({"ptxas": "12.4"}, CompileError, r"is of CUDA 12.8, but .*ptxas of 12.4: install equal versions"),
        ({"codes": "sm_90"}, UnsupportedError, "nvcc 12.8.9 does not know sm_89"),
        ({}, None, ""),
    ],
)
def test_what_a_compiler_says_of_itself(monkeypatch, tmp_path, told, error, message):
    for name, value in fake_nvcc(tmp_path, **told).items():
        monkeypatch.setenv(name, value)
    toolchain = jit.cuda_toolchain("sm_89")
    if error is None:
        assert toolchain.probe() == "nvcc 12.8.9"
        return
    with pytest.raises(error, match=message):
        toolchain.probe()


def test_the_report_of_ptxas():
    log = """ptxas info    : Compiling entry function '_Z1kv' for 'sm_80'
ptxas info    : Function properties for _Z1kv
    24 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem, 24 bytes cumulative stack size"""
    expected = {"kernel": "_Z1kv", "arch": "sm_80", "registers": 40, "stack": 24}
    expected |= {"spill_stores": 8, "spill_loads": 16, "shared": 2048, "serialized": False}
    assert read_resources(log) == [expected]
    warned = "ptxas info    : (C7515) wgmma.mma_async instructions are serialized due to it in the function '_Z1kv'\n"
    assert read_resources(warned + log) == [expected | {"serialized": True}]
    assert read_resources("nothing of the kind") == []


def packaged_nvcc():
    folders = [folder for folder in nvcc.packaged_toolkits() if (folder / "bin" / "nvcc").is_file()]
    return folders[0] if folders else None


@pytest.mark.skipif(packaged_nvcc() is None, reason="pip has no nvcc: pip install 'attnloom[cuda]'")
def test_the_compiler_from_pip_needs_no_toolkit(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("g++", "gcc", "as", "ld", "sh", "cat", "rm", "dirname"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    text = "#include <cuda_bf16.h>\\n__global__ void k(__nv_bfloat16* x) { x[threadIdx.x] += x[0]; }"
    script = (
        f"from attnloom import jit; unit = jit.CompileUnit(name='pip', kind='test', sources={{'kernel.cu': '{text}'}});"
        "chain = jit.cuda_toolchain('sm_90a'); print(chain.command[0]); print(jit.build(unit, chain).path)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH", "CXX")}
    environment |= {"PATH": str(tools), "ATTNLOOM_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command, path = done.stdout.split()
    assert Path(command).is_relative_to(packaged_nvcc()) and Path(path).is_file()
