"""What emulation sees of barriers that some warps meet at: a hand-written pipeline, right and with parts left out."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from attnloom import jit
from emulation.bench import HOPPER
from emulation.emulated import open_library

SOURCE = Path(__file__).with_name("pipeline.cu").read_text()
TILES, ROWS, COLUMNS = 5, 128, 128


class Args(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("q", "k", "out", "turns")] + [("tiles", ctypes.c_int)]


def run(seed, changes=(), ignored=None):
    """What the pipeline, its text changed, makes of random tiles, and what it should make: `(got, expected)`."""
    text = SOURCE
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    unit = jit.CompileUnit("pipeline", {"pipeline.cu": text}, include_dirs=jit.include_dirs())
    library = open_library(unit, HOPPER)
    draw = np.random.default_rng(seed).integers
    q, k = (draw(-4, 5, shape).astype(np.float16) for shape in ((ROWS, COLUMNS), (TILES, ROWS, COLUMNS)))
    out, turns = np.full((ROWS, ROWS), np.nan, np.float32), np.full(2 * TILES, -1, np.int32)
    regions = np.array([(array.ctypes.data, array.nbytes, 0) for array in (q, k)], np.uint64)
    library.emulation_prepare(seed, regions.ctypes.data, len(regions), ignored)
    args = Args(*(array.ctypes.data for array in (q, k, out, turns)), TILES)
    if status := library.attnloom_run(ctypes.byref(args), None):
        raise RuntimeError(library.attnloom_error(status).decode())
    expected = q.astype(np.float32) @ k.astype(np.float32).sum(0).T
    return (out, turns), (expected, [0, 1] * TILES)


def check(seeds, **options):
    for seed in range(seeds):
        for got, expected in zip(*run(seed, **options), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_pipeline(compiler):
    check(10)


@pytest.mark.parametrize(
    "missing",
    [
        "wait_groups<0>();  // of keys",
        "publish();         // of keys",
        "__syncwarp();      // of keys",
        "wait(barriers.full[tile % 2], tile / 2 & 1);",
        "if (tile >= 2) wait(barriers.empty[tile % 2], tile / 2 + 1 & 1);",
        "wait_products<0>();",
        "meet(1 + group);",
    ],
)
def test_missing(compiler, missing):
    with pytest.raises((RuntimeError, AssertionError), match="thread|Arrays are not equal"):
        check(20, changes=[(missing, "")])


def test_waits_that_do_nothing(compiler):
    for ignored in (b"mbarrier.try_wait", b"bar.sync"):
        with pytest.raises((RuntimeError, AssertionError), match="thread|Arrays are not equal"):
            check(20, ignored=ignored)


ARRIVE = "if (lane == 0) arrive(barriers.full[tile % 2]);"
PUBLISH = "publish();         // of keys"
FINISH = "wait_products<0>();"
PASS = 'bar.arrive %0, %1;" ::"r"(barrier), "n"'
LOWER = 'asm volatile("setmaxnreg.dec'


@pytest.mark.parametrize(
    "changes, seen",
    [
        ([(PUBLISH, ""), (ARRIVE, f"{ARRIVE} publish();")], "no fence has made known"),
        ([(FINISH, ""), ("  for (int t = 0;", f"{FINISH} for (int t = 0;")], "while it was in flight"),
        ([("init(barriers.full[i], 4);", "")], r"uses an mbarrier at \d+ that was not initialised"),
        ([("init(barriers.empty[i], 8);", "init(barriers.full[i], 8);")], r"initialises the mbarrier at \d+ again"),
        ([("init(barriers.full[i], 4);", "init(barriers.full[i], 5);")], "waits for parity 0 of the mbarrier at"),
        ([("pass(2 - group);", ";")], "thread 128 waits for barrier 2"),
        ([(f"{PASS}(256)", f"{PASS}(128)")], "comes to barrier 1 of (128|256) threads while it is one of"),
        ([("(group == 1) pass", "(group == 1 && lane > 0) pass")], "others of its warp are at bar.arrive"),
        ([(LOWER, f"if (lane > 0) {LOWER}")], "others of its warp are at setmaxnreg.dec"),
    ],
)
def test_wrong(compiler, changes, seen):
    with pytest.raises(RuntimeError, match=seen):
        check(20, changes=changes)
