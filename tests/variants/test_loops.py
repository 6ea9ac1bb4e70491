"""Loops over keys and rows vectorise, and a debug build catches an index that leaves its tensor."""

import re
import subprocess

import pytest
from attnloom import jit
from attnloom.compose import INCLUDE_DIR, compose
from attnloom.testing.functors import FunctorSpec

LOOPS = """
using attnloom::generated::Params;
using attnloom::generated::Variant;
void logits(const Params& p, float* x, int n, int head, int q_pos, int kv_pos) {
#pragma omp simd
  for (int j = 0; j < n; j++) x[j] = Variant::logits_transform(p, x[j], {0, head, 0, 0, j, q_pos, kv_pos + j, 1, n});
}
"""
MATH = """
#include <attnloom/variant.h>
void loop(float* x, int n) {
#pragma omp simd
  for (int j = 0; j < n; j++) x[j] = attnloom::FUNCTION(x[j]);
}
"""
FLAGS = [
    "-std=c++20",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fopt-info-vec-optimized",
    "-c",
]


@pytest.fixture(scope="module")
def gcc():
    command = jit.host_toolchain().command
    version = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
    machine = subprocess.run([*command, "-dumpmachine"], capture_output=True, text=True).stdout
    if "Free Software Foundation" not in version or "x86_64" not in machine:
        pytest.skip("reads GCC's report for x86-64")
    return list(command)


def vectorised(gcc, text, folder, include_dirs=(INCLUDE_DIR,)) -> bool:
    source = folder / "loop.cc"
    source.write_text(text)
    command = [*gcc, *FLAGS, "-march=x86-64-v3", str(source), "-o", str(folder / "loop.o")]
    done = subprocess.run(command + [f"-I{path}" for path in include_dirs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return bool(re.search(r"loop vectorized using 32 byte", done.stderr))


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos"])
def test_functions_vectorise(gcc, name, tmp_path):
    assert vectorised(gcc, MATH.replace("FUNCTION", name), tmp_path)


@pytest.mark.parametrize("chain", [["soft_cap"], ["alibi"], ["sigmoid"], ["alibi", "soft_cap", "sigmoid"]])
def test_chains_over_keys_vectorise(gcc, chain, tmp_path, plugins):
    composition = compose(chain, spec=FunctorSpec(), plugins=plugins)
    assert vectorised(gcc, composition.source + LOOPS, tmp_path, composition.include_dirs)


@pytest.mark.parametrize(
    ("index", "said"), [(5, "index 5 is outside dimension 1 of size 5"), (-1, "index -1 is outside"), (4, "")]
)
def test_a_debug_build_checks_indices(index, said, tmp_path):
    source = tmp_path / "check.cc"
    source.write_text(
        "#include <attnloom/variant.h>\n"
        "int main() {\n"
        "  float data[10] = {};\n"
        "  attnloom::TensorRef<float, 2> t{data, {2, 5}, {5, 1}};\n"
        f"  return t(1, {index}) != 0;\n"
        "}\n"
    )
    program = tmp_path / "check"
    command = [
        *jit.host_toolchain().command,
        "-std=c++20",
        "-DATTNLOOM_DEBUG",
        f"-I{INCLUDE_DIR}",
        str(source),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert said in done.stderr and (done.returncode == 0) == (not said)
