"""Every built-in variant compiles for devices from the source that the host runs."""

import shutil
import subprocess

import pytest
from attnloom.compose import compose
from attnloom.testing.functors import FunctorSpec

CHAINS = {
    "softmax": ["causal", "qk_norm", "rope", "alibi", "soft_cap", "sliding_window", "sinks", "bit_mask"],
    "sigmoid": ["causal", "turn=rope", "sigmoid"],
}
KERNEL = """
using attnloom::generated::Variant;
using attnloom::Site;
__global__ void probe(Variant::Params p, float* x, int* flags, Site site) {
  float storage[8];
  attnloom::Row<attnloom::HostMap<8>> row{storage};
  for (int d = 0; d < 8; d++) storage[d] = x[d];
  Variant::query_transform(p, row, site);
  Variant::key_transform(p, row, site);
  Variant::value_transform(p, row, site);
  Variant::output_transform(p, row, site);
  for (int d = 0; d < 8; d++) x[d] = Variant::logits_transform(p, storage[d], site);
  const auto set = Variant::kv_range(p, site);
  flags[0] = Variant::logits_mask(p, site) && set.contains(site.kv_pos) && set.hull().lo <= site.kv_pos;
  const auto init = Variant::row_init(p, site);
  x[0] += init.m + init.d + attnloom::log(x[1]) + attnloom::exp2(x[2]);
  x[1] += attnloom::sin(x[3]) + attnloom::pow(x[4], x[5]);
}
"""


@pytest.mark.parametrize("chain", CHAINS)
def test_composed_plugins_compile_for_ampere_and_hopper(chain, tmp_path, plugins):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    params = {"turn.interleaved": True, "turn.rotary_dim": 4} if chain == "sigmoid" else None
    composition = compose(CHAINS[chain], spec=FunctorSpec(head_dim=8, head_dim_v=8), plugins=plugins, params=params)
    source = tmp_path / "probe.cu"
    source.write_text(composition.source + KERNEL)
    command = [nvcc, "-std=c++20", "-Werror", "all-warnings", "-c", str(source), "-o", str(tmp_path / "probe.o")]
    command += [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ("80", "90a")]
    command += [f"-I{folder}" for folder in composition.include_dirs]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
