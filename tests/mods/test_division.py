"""The division of lowered mods on devices is that of IEEE 754, computed here by the host from the same text."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from attnloom.jit.launcher import CORE_INCLUDE

LEAST = np.float32(2.0**-126)
"""The least normal number."""

SOURCE = """
#include <attnloom/mods.h>
extern "C" void divide(const float* a, const float* b, float* out, long n) {
  for (long i = 0; i < n; i++) out[i] = attnloom::mods::detail::Divisor(b[i]).divides(a[i]);
}
"""
EDGES = np.array(
    [0.0, 1.0, 2.0**-149, 3e-40, 2.0**-126, 2.0**-100, 2.0**-70, 2.0**64, np.inf, np.nan, *np.nextafter(
        np.array([2.0, 2.0**-125, np.inf], np.float32), np.float32(0))], np.float32
)  # fmt: skip


@pytest.fixture(scope="module")
def divide(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("division")
    (folder / "division.cpp").write_text(SOURCE)
    command = [compiler, "-std=c++20", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{CORE_INCLUDE}"]
    subprocess.run([*command, "division.cpp", "-o", "division.so"], cwd=folder, check=True)
    function = ctypes.CDLL(str(folder / "division.so")).divide

    def call(a, b):
        out = np.empty_like(a)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, out)]
        function(*pointers, ctypes.c_long(len(a)))
        return out

    return call


def numbers(rng, count):
    """Floats of any bits, among them edges, mantissas of ones and powers of two."""
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    kind = rng.integers(0, 8, count)
    bits = np.where(kind == 0, bits | np.uint32(0x7FFFFF), bits)
    bits = np.where(kind == 1, bits & np.uint32(0xFF800000), bits)
    sign = np.where(rng.integers(0, 2, count) == 1, np.float32(-1), np.float32(1))
    return np.where(kind == 2, rng.choice(EDGES, count) * sign, bits.view(np.float32))


def test_quotients_are_rounded_correctly(divide):
    rng = np.random.default_rng(0)
    a, b = numbers(rng, 1 << 21), numbers(rng, 1 << 21)
    with np.errstate(all="ignore"):
        want = a / b
    got = divide(a, b)
    nan = np.isnan(want) | ((np.abs(b) < LEAST) & (np.abs(a) > np.float32(2.0**104)))
    assert np.isnan(got[np.isnan(want)]).all() and not np.isnan(got[~nan]).any()
    a, b, got, want = a[~nan], b[~nan], got[~nan], want[~nan]
    assert (np.signbit(got) == np.signbit(want)).all()
    subnormal, small = np.abs(want) < LEAST, np.abs(a) < np.float32(2.0**-100)
    assert (got == want)[~subnormal & ~small].all()
    last = subnormal & ~small
    assert np.abs(got[last] - want[last]).max() <= np.float32(2.0**-149)
    with np.errstate(all="ignore"):
        off = np.abs(got.astype(float) - want)
        allowed = 2.0**-148 / np.abs(b.astype(float)) + 2.0**-23 * np.abs(want) + 2.0**-149
    assert ((off <= allowed) | (got == want))[small].all()
