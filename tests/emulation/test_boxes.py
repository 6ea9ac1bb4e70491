"""Copies of boxes: pages that hold some, rows that lie in none, and batches whose queries or keys are no boxes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import attnloom
import numpy as np
import pytest
from attnloom import jit
from emulation.bench import HOPPER, KERNELS, TEAMS
from emulation.emulated import open_library
from emulation.test_kernels import rounding

LONG = [(200, 600), (37, 290), (1, 300), (33, 128)]
HEADS = {
    "groups_of_8": {"num_qo_heads": 8, "num_kv_heads": 1, "head_dim": 64},
    "groups_of_1": {"num_qo_heads": 2, "head_dim": 64},
}


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    for name, changes in HEADS.items():
        monkeypatch.setitem(KERNELS, name, (HOPPER, "causal", {**changes, **TEAMS}))


@pytest.mark.parametrize(
    "kernel, page_size",
    [
        *(("teams", size) for size in (8, 20, 32, 100, 128)),
        ("teams_plain", 16),
        ("teams_plain", 100),
        ("teams_d80", 16),
    ],
)
def test_pages(bench, rng, kernel, page_size):
    wrapper = bench.wrapper(kernel)
    bench.check(wrapper, *bench.batch(rng, wrapper.spec, LONG, page_size), scale=rounding(kernel))


@pytest.mark.parametrize(
    "kernel", ("teams_window", "teams_soft_cap", "teams_capped_alibi", "teams_groups_of_3", *HEADS)
)
def test_variants_and_groups(bench, rng, kernel):
    wrapper = bench.wrapper(kernel)
    bench.check(wrapper, *bench.batch(rng, wrapper.spec, LONG, 32), scale=rounding(kernel))


@pytest.mark.parametrize("layout", ("fused", "hnd", "layers"))
def test_layouts(bench, rng, layout):
    wrapper = bench.wrapper("teams_d80")
    bench.check(wrapper, *bench.batch(rng, wrapper.spec, LONG[1:], 32, layout=layout))


@pytest.mark.parametrize(
    "page_size, starts", [(None, None), (None, [700, 0, 1100]), (32, [1, 640, 1008]), (64, [40, 660, 960])]
)
@pytest.mark.parametrize("kernel", ("teams", "teams_plain"))
def test_dense_keys(bench, rng, kernel, page_size, starts):
    """One page, and rows whose first key lies anywhere in its page."""
    wrapper = bench.wrapper(kernel)
    build = attnloom.storage_format("dense").build_index
    index = build([200, 1, 60], [600, 300, 330], page_size, kv_starts=starts)
    pages = -(-int(index.to_dense().slot.max() + 1) // index.page_size)
    bench.check(wrapper, index, index, bench.tensors(rng, wrapper.spec, index, pages))


def test_units_without_keys(bench, rng):
    """More of them in a row than queries have places: each gives its own back."""
    wrapper = bench.wrapper("teams", num_workers=1)
    bench.check(wrapper, *bench.batch(rng, wrapper.spec, [(33, 0)] * 4 + [(40, 200), (64, 0)]))


def test_split_units(bench, rng):
    """Whoever writes the last part of a unit's rows merges them."""
    wrapper = bench.wrapper("teams")
    bench.check(wrapper, *bench.batch(rng, wrapper.spec, [(64, 700)]))
    plan = wrapper._plan.view.decode()
    assert plan.fused_merge and all(item.tile_class == 1 and item.part_row >= 0 for item in plan.items)


def test_shared_prefixes(bench, radix_index, rng):
    wrapper = bench.wrapper("teams")
    index, pages = radix_index(rng, [(0, 70, 200)] * 3 + [(1, 5, 90), (2, 133, 140)], roots=(20, 6, 0))
    bench.check(wrapper, index, index, bench.tensors(rng, wrapper.spec, index, pages))


def test_listed_positions(bench, rng):
    wrapper = bench.wrapper("teams")
    tables = rng.permutation(90).astype(np.int32).reshape(3, 30)
    parents = [[-1, *(i // 2 for i in range(39))], [-1, 0, 1, 2], [-1, *range(59)]]
    build = attnloom.storage_format("tree_attention").build_index
    index = build([40, 4, 60], [430, 4, 290], 16, parents=parents, block_tables=tables)
    bench.check(wrapper, index, index, bench.tensors(rng, wrapper.spec, index, 90))


SOURCE = Path(__file__).with_name("boxes.cu").read_text()
BOX = 1, 4, 2, 64


class Args(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("sizes", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 3),
        ("at", ctypes.c_int * 4),
    ]


def copy(tensor, at, changes=(), strides=None, seen=None):
    """The box of `tensor` whose first element is at `at`, by the kernel, its text changed; `seen`: what it may read."""
    text = SOURCE
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    library = open_library(jit.CompileUnit("boxes", {"boxes.cu": text}, include_dirs=jit.include_dirs()), HOPPER)
    out = np.full(BOX, 7, np.uint16)
    regions = np.array([(tensor.ctypes.data, tensor.nbytes if seen is None else seen, 0)], np.uint64)
    library.emulation_prepare(0, regions.ctypes.data, 1, None)
    strides = strides or [size // 2 for size in tensor.strides[2::-1]]
    args = Args(tensor.ctypes.data, out.ctypes.data, tensor.shape[::-1], (ctypes.c_int64 * 3)(*strides), at)
    if status := library.attnloom_run(ctypes.byref(args), None):
        raise RuntimeError(library.attnloom_error(status).decode())
    return out


@pytest.fixture
def tensor(compiler, rng):
    room = rng.integers(1, 9, 3 * 5 * 6 * 80 + 8).astype(np.uint16)
    begin = -room.ctypes.data % 16 // 2
    return room[begin : begin + 3 * 5 * 6 * 80].reshape(3, 5, 6, 80)


@pytest.mark.parametrize(
    "at", [(0, 0, 0, 0), (8, 3, 1, 2), (64, 5, 3, 1), (-3, -1, -2, 0), (0, 0, 0, 3), (0, 0, -9, 0)]
)
def test_elements_of_a_box(tensor, at):
    """Those outside of the tensor are zeros."""
    wide = np.pad(tensor, [(64, 64)] * 4)
    begins = [64 + one for one in at[::-1]]
    expected = wide[tuple(slice(begin, begin + size) for begin, size in zip(begins, BOX, strict=True))]
    np.testing.assert_array_equal(copy(tensor, at), expected)


@pytest.mark.parametrize(
    "changes, seen",
    [
        ([("shared_address(memory)", "shared_address(memory) + 64")], "is not aligned"),
        ([("shared_address(memory)", "shared_address(memory) + 128")], "is past the block's shared memory"),
        ([("kRows * 128);\n    copy_box", "kRows * 64);\n    copy_box")], "waits for parity 0 of the mbarrier"),
        ([("  wait(full, 0);\n", ""), ("  for (int i = lane_id()", "  for (int i = kRows * 64")], "ends while boxes"),
        ([("full);\n  }", "full);\n    memory[5] = 1;\n  }")], "is written to 0, where a box is to come"),
        ([("    make_barrier", "    memory[5] = 1;\n    make_barrier")], "that no fence has made known"),
        ([("(*args, map)", "(*args, TensorMap{})")], "by a map that was not encoded"),
        ([("{64, 2,", "{72, 2,")], "there is no map"),
        ([("{64, 2,", "{64, 257,")], "there is no map"),
    ],
)
def test_wrong(tensor, changes, seen):
    with pytest.raises(RuntimeError, match=seen):
        copy(tensor, (0, 0, 0, 0), changes)


def test_maps_of_other_tensors(tensor):
    for strides in ([84, 480, 2400], [80, 2**39, 2400]):
        with pytest.raises(RuntimeError, match="there is no map"):
            copy(tensor, (0, 0, 0, 0), strides=strides)
    with pytest.raises(RuntimeError, match="there is no map"):
        copy(tensor[..., 1:], (0, 0, 0, 0), strides=[80, 480, 2400])
    with pytest.raises(RuntimeError, match=r"reads 128 bytes outside all tensors"):
        copy(tensor, (0, 4, 0, 0), seen=960)
