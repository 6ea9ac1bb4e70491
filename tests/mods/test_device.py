"""The gallery and some odd mods compile for devices from the text that the host runs."""

import shutil
import subprocess

import pytest
from attnloom import Variant
from attnloom.compose import compose
from attnloom.plugins import PluginSet
from attnloom.testing.functors import FunctorSpec
from mods import gallery_cases, odd_mods

ODD = ("half_sums", "narrow_wraps", "functions", "float_floor", "powers", "nan_through_clamp", "double_capture")
KERNEL = """
using attnloom::generated::Variant;
__global__ void probe(const Variant::Params* p, float* x, int* kept, attnloom::Site site) {
  site.kv_pos = threadIdx.x;
  x[threadIdx.x] = Variant::logits_transform(*p, x[threadIdx.x], site);
  kept[threadIdx.x] = Variant::logits_mask(*p, site) & Variant::kv_range(*p, site).contains(site.kv_pos);
}
"""


def test_lowered_mods_compile_for_ampere_and_hopper(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    scores = gallery_cases.SCORES | {name: odd_mods.SCORES[name] for name in ODD}
    variants = [Variant.from_mods(name, score_mod=mod, fast_math="a" in name) for name, mod in scores.items()]
    variants += [Variant.from_mods(name, mask_mod=mod) for name, mod in gallery_cases.MASKS.items()]
    composition = compose(variants, spec=FunctorSpec(), plugins=PluginSet.default())
    source = tmp_path / "probe.cu"
    source.write_text(composition.source + KERNEL)
    command = [nvcc, "-std=c++20", "-Werror", "all-warnings", "-c", str(source), "-o", str(tmp_path / "probe.o")]
    command += [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ("80", "90a")]
    command += [f"-I{folder}" for folder in composition.include_dirs]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
