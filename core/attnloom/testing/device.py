"""What needs a GPU's compiler or a GPU."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import SkipTest

ARCHITECTURES = ("80", "90a")

TOLERANCE = 5e-3
"""Bound of a GPU kernel's error in float16, relative to the reference's magnitude."""

_PROBE = """
using attnloom::generated::Variant;
using attnloom::Site;
__global__ void probe(Variant::Params p, float* x, int* flags, Site site) {
  float storage[HEAD_DIM > HEAD_DIM_V ? HEAD_DIM : HEAD_DIM_V];
  for (float& one : storage) one = *x++;
  attnloom::Row<attnloom::HostMap<HEAD_DIM>> row{storage};
  attnloom::Row<attnloom::HostMap<HEAD_DIM_V>> values{storage};
  Variant::query_transform(p, row, site);
  Variant::key_transform(p, row, site);
  Variant::value_transform(p, values, site);
  Variant::output_transform(p, values, site);
  for (float one : storage) *x++ = Variant::logits_transform(p, one, site);
  if constexpr (Variant::linear_in_distance) *x++ = Variant::line(p, site).slope;
  if constexpr (Variant::may_curve) *x++ = Variant::curve(p, site).limit;
  const auto set = Variant::kv_range(p, site);
  flags[0] = Variant::logits_mask(p, site) && set.contains(site.kv_pos);
  const auto init = Variant::row_init(p, site);
  *x = init.m + init.d;
}
"""


def compile_for_devices(composition) -> None:
    """Compile the composition's functors for each of `ARCHITECTURES`. Raises `AssertionError` with the first error.

    Raises `SkipTest` where there is no nvcc.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SkipTest("needs nvcc on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cu")
        sizes = f"#define HEAD_DIM {composition.spec.head_dim}\n#define HEAD_DIM_V {composition.spec.head_dim_v}\n"
        source.write_text(composition.source + sizes + _PROBE, encoding="utf-8")
        command = [
            nvcc,
            "-std=c++20",
            "-O1",
            "-Werror",
            "all-warnings",
            "-fatbin",
            str(source),
            "-o",
            str(Path(folder, "probe.fatbin")),
        ]
        command += [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES]
        command += [f"-I{include}" for include in composition.include_dirs]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line]
        raise AssertionError(f"does not compile for devices: {(lines or ['no message'])[0].strip()}")


def require_gpu() -> None:
    """Raise `SkipTest` where torch sees no GPU, or this attnloom has no kernels for it."""
    import torch

    from attnloom import AttentionSpec, AttentionWrapper, UnsupportedError

    if not torch.cuda.is_available():
        raise SkipTest("needs a GPU")
    try:
        AttentionWrapper(AttentionSpec([], num_qo_heads=1, num_kv_heads=1, head_dim=64, dtype="float16"), "cuda")
    except UnsupportedError as error:
        raise SkipTest(f"no kernels for the GPU: {error}") from error


def to_gpu(data) -> SimpleNamespace:
    """A copy of `batches.tensors` on the GPU."""
    return SimpleNamespace(**{name: tensor.cuda() for name, tensor in vars(data).items()})
