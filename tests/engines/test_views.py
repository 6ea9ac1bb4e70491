"""Views of indices: what the launcher finds through the buffer protocol, whatever the arrays are."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from attnloom.abi import IndexBytes, RunArgs
from attnloom.errors import PlanError, UnsupportedError
from attnloom.index import ComposedIndex, Level
from attnloom.jit.launcher import view_index
from attnloom.views import IndexViewer


def index_of(indices, *, heads=False, **arrays):
    level = Level(
        row_indptr=np.int32([0, 1, 3]),
        kv_len=np.int32([5, 6]),
        kv_start=np.int32([0, 0]),
        kv_offset=np.int32([0, 0]),
        page_begin=np.int64([0, 2]),
        indices=indices,
        per_head=heads,
        **arrays,
    )
    return ComposedIndex(
        page_size=4, qo_indptr=np.int32([0, 1, 3]), kv_len=np.int32([5, 6]), token_request=[0, 1, 1], levels=[level]
    )


class Written:
    """A view that indices are written into, one after another."""

    def __init__(self, device="cpu"):
        self.args, self.sizes = RunArgs(), IndexBytes()
        self._viewer = IndexViewer(self.args, self.sizes, 2, torch.device(device))

    def write(self, index):
        """The view of the first level, and the bytes of its arrays."""
        self._viewer.write(index)
        return self.args.index.levels[0], list(self.sizes.levels[0])


def test_counts_and_addresses():
    written, index = Written(), index_of(np.int64([7, 8, 9, 10]), block_pos=[0, 4, 0, 4])
    level, sizes = written.write(index)
    view = written.args.index
    assert (view.num_requests, view.num_tokens, view.num_levels, view.page_size) == (2, 3, 1, 4)
    assert (level.num_rows, level.indices_are_64, level.indices_head_stride) == (2, 1, 0)
    assert sizes == [32, 16, 0, 0]
    for name in ("row_indptr", "kv_len", "kv_start", "page_begin", "indices", "block_pos"):
        assert getattr(level, name) == getattr(index.levels[0], name).ctypes.data, name
    assert not any(getattr(level, name) for name in ("row_tokens", "mask_bits", "mask_begin", "key_pos"))
    assert not view.q_pos


@pytest.mark.parametrize("as_tensor", [False, True])
def test_page_lists_of_each_head(as_tensor):
    table = np.arange(2 * 9, dtype=np.int32).reshape(2, 9)
    pages = torch.from_numpy(table)[:, 2:6] if as_tensor else table[:, 2:6]
    level, sizes = Written().write(index_of(pages, heads=True))
    assert level.indices == table.ctypes.data + 8 and (level.indices_head_stride, level.indices_are_64) == (9, 0)
    assert sizes[0] == 9 * 4 + 4 * 4
    assert ctypes.c_int32.from_address(level.indices + 4 * level.indices_head_stride).value == 11


def test_arrays_that_must_not_be_written():
    pages = np.int32([1, 2, 3, 4])
    pages.flags.writeable = False
    assert Written().write(index_of(pages))[0].indices == pages.ctypes.data


def test_a_view_is_written_anew():
    written = Written()
    masked = index_of(torch.tensor([1, 2, 3, 4]), mask_bits=np.uint32([1, 2, 3]), mask_begin=[0, 1])
    level, sizes = written.write(masked)
    assert level.indices_are_64 == 1 and level.mask_bits and sizes[2] == 12
    level, sizes = written.write(index_of(np.int32([1, 2, 3, 4])))
    assert not level.mask_bits and not level.mask_begin and level.indices_are_64 == 0 and sizes[2] == 0


def test_page_ids_on_the_device_stay_there():
    level, sizes = Written("meta").write(index_of(torch.zeros(4, dtype=torch.int64, device="meta")))
    assert sizes[0] == -1 and (level.indices_are_64, level.indices_head_stride) == (1, 0)


def test_refusals():
    with pytest.raises(PlanError, match="page lists for 3 kv heads, the spec has 2"):
        Written().write(index_of(np.zeros((3, 4), np.int32), heads=True))
    with pytest.raises(UnsupportedError, match=r"the page ids are on meta, the kernel runs on cpu: use .cpu\(\)"):
        Written().write(index_of(torch.zeros(4, dtype=torch.int32, device="meta")))
    args, sizes = RunArgs(), IndexBytes()
    places = ctypes.addressof(args.index), ctypes.addressof(sizes)
    with pytest.raises(TypeError, match="bytes-like object"):
        view_index()((np.int32([0]), 3.5, None, None), 4, *places)
    with pytest.raises(IndexError):
        view_index()((), 4, *places)


def test_an_index_is_looked_at_once_in_a_row():
    written, one, other = Written(), index_of(np.int32([7, 8, 9, 10])), index_of(np.int32([1, 2, 3, 4]))
    level, _ = written.write(one)
    level.num_rows = 99
    assert written.write(one)[0].num_rows == 99
    assert written.write(other)[0].num_rows == 2
    with pytest.raises(PlanError):
        written.write(index_of(np.zeros((3, 4), np.int32), heads=True))
    level.num_rows = 99
    level, _ = written.write(other)
    assert (level.num_rows, level.indices) == (2, other.levels[0].indices.ctypes.data)


def test_arrays_that_are_one_lie_at_one_address():
    zeros, rows = np.int32([0, 0]), np.int32([0, 1, 3])
    arrays = {
        "row_indptr": rows,
        "kv_len": zeros,
        "kv_start": zeros,
        "kv_offset": zeros,
        "page_begin": np.int64([0, 2]),
    }
    levels = [Level(indices=np.int32([7, 8, 9]), **arrays), Level(indices=np.int32([7, 8]), **arrays)]
    index = ComposedIndex(page_size=4, qo_indptr=rows, kv_len=zeros, token_request=[0, 1, 1], levels=levels)
    written = Written()
    written.write(index)
    for view, level in zip(written.args.index.levels, levels, strict=False):
        for name in (*arrays, "indices"):
            assert getattr(view, name) == getattr(level, name).ctypes.data, name
    assert [sizes[0] for sizes in list(written.sizes.levels)[:2]] == [12, 8]
