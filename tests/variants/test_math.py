"""attnloom/math.h against float64, at every exponent and at the edges."""

import ctypes

import numpy as np
import pytest
from attnloom import jit
from attnloom.compose import INCLUDE_DIR

FUNCTIONS = ("exp", "exp2", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos")
SOURCE = "#include <attnloom/variant.h>\n" + "".join(
    f"""
extern "C" __attribute__((visibility("default"))) void f_{name}(float* x, long n) {{
  _Pragma("omp simd") for (long i = 0; i < n; i++) x[i] = attnloom::{name}(x[i]);
}}"""
    for name in FUNCTIONS
)
SOURCE += """
extern "C" __attribute__((visibility("default")))
void f_turn(const float* a, const float* b, float* s, float* c, long n) {
  _Pragma("omp simd") for (long i = 0; i < n; i++) attnloom::sincos(a[i], b[i], s[i], c[i]);
}
extern "C" __attribute__((visibility("default"))) void f_soft_clamp(float* x, float bound, long n) {
  _Pragma("omp simd") for (long i = 0; i < n; i++) x[i] = attnloom::soft_clamp(x[i], bound);
}
"""


@pytest.fixture(scope="module")
def library():
    unit = jit.CompileUnit(name="math", sources={"math.cc": SOURCE}, include_dirs=[INCLUDE_DIR], kind="test")
    return ctypes.CDLL(str(jit.build(unit).path))


@pytest.fixture
def call(library):
    def call(name, x):
        x = np.array(x, np.float32)
        getattr(library, f"f_{name}")(ctypes.c_void_p(x.ctypes.data), ctypes.c_long(x.size))
        return x

    return call


def ulps(got, want):
    """Distance of float32 `got` from float64 `want`, in units of the last place of `want`."""
    unit = np.maximum(np.spacing(np.abs(want).astype(np.float32)).astype(np.float64), 2.0**-149)
    return np.abs(got.astype(np.float64) - want) / unit


EXACT = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
DOMAINS = {
    "exp": np.linspace(-105, 88.7, 200_001),
    "exp2": np.linspace(-150, 127.99, 200_001),
    "log": np.concatenate([np.logspace(-45, 38.5, 100_001), np.linspace(0.5, 2, 100_001)]),
    "tanh": np.concatenate([np.linspace(-12, 12, 100_001), np.logspace(-38, 1, 50_001), -np.logspace(-38, 1, 50_001)]),
    "sigmoid": np.linspace(-87, 120, 200_001),
    "sqrt": np.logspace(-37, 38, 10_001),
    "rsqrt": np.logspace(-37, 38, 10_001),
}
BOUNDS = {"exp": 1.5, "exp2": 1.5, "log": 2.5, "tanh": 3.5, "sigmoid": 3.5, "sqrt": 0.5001, "rsqrt": 1.6}


@pytest.mark.parametrize("name", list(DOMAINS))
def test_errors_stay_within_their_bound(call, name):
    x = DOMAINS[name].astype(np.float32)
    with np.errstate(all="ignore"):
        want = EXACT[name](x.astype(np.float64))
    worst = ulps(call(name, x), want).max()
    assert worst <= BOUNDS[name], f"{name}: {worst:.2f} ulp"


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("exp", [-np.inf, np.inf, -200, 89, -1e30, 0, -0.0, np.nan], [0, np.inf, 0, np.inf, 0, 1, 1, np.nan]),
        ("exp2", [-np.inf, np.inf, -200, 128, 0, -149, np.nan], [0, np.inf, 0, np.inf, 1, 2.0**-149, np.nan]),
        ("log", [0, -0.0, np.inf, -1, -np.inf, 1, np.nan], [-np.inf, -np.inf, np.inf, np.nan, np.nan, 0, np.nan]),
        ("tanh", [-np.inf, np.inf, 0, 500, -500, np.nan], [-1, 1, 0, 1, -1, np.nan]),
        ("sigmoid", [-np.inf, np.inf, 0, 500, -500, np.nan], [0, 1, 0.5, 1, 0, np.nan]),
        ("sin", [0, np.inf, np.nan], [0, np.nan, np.nan]),
        ("cos", [0, -np.inf, np.nan], [1, np.nan, np.nan]),
    ],
)
def test_edges_are_those_of_ieee(call, name, x, want):
    np.testing.assert_array_equal(call(name, x), np.array(want, np.float32))


def test_tanh_is_odd(call):
    x = np.linspace(0, 12, 10_001, dtype=np.float32)
    np.testing.assert_array_equal(call("tanh", -x), -call("tanh", x))
    assert np.signbit(call("tanh", [-0.0])).all()


@pytest.mark.parametrize("bound", [1e-3, 1.0, 50.0, 1e6])
def test_a_soft_clamp_is_a_scaled_tanh(library, bound):
    x = bound * np.concatenate([np.linspace(-12, 12, 10_001), [np.inf, -np.inf, 0]]).astype(np.float32)
    got = x.copy()
    library.f_soft_clamp(ctypes.c_void_p(got.ctypes.data), ctypes.c_float(bound), ctypes.c_long(got.size))
    exact = np.float32(bound).astype(np.float64)
    assert np.abs(got - exact * np.tanh(x / exact)).max() < 3e-7 * bound
    np.testing.assert_array_equal(got[-3:], np.float32([bound, -bound, 0]))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 100.0, 1e4, 1e6, 1e9])
def test_sine_and_cosine_of_large_angles(call, scale):
    x = (np.random.default_rng(0).uniform(-1, 1, 20_000) * scale).astype(np.float32)
    for name, exact in (("sin", np.sin), ("cos", np.cos)):
        error = np.abs(call(name, x) - exact(x.astype(np.float64))).max()
        assert error < 1.5e-7, f"{name} at {scale}: {error}"


def test_the_angle_of_a_product_is_exact(library):
    rng = np.random.default_rng(1)
    pos = rng.integers(0, 2**24, 20_000).astype(np.float32)
    freq = (10000.0 ** -rng.uniform(0, 1, 20_000)).astype(np.float32)
    sine, cosine = np.empty_like(pos), np.empty_like(pos)
    library.f_turn(*(ctypes.c_void_p(x.ctypes.data) for x in (pos, freq, sine, cosine)), ctypes.c_long(pos.size))
    angle = pos.astype(np.float64) * freq.astype(np.float64)
    assert np.abs(sine - np.sin(angle)).max() < 1.5e-7
    assert np.abs(cosine - np.cos(angle)).max() < 1.5e-7
