"""Block tables as memory: kernels read page ids one after the other, whatever the strides of the table were."""

from __future__ import annotations

import ctypes

import attnloom
import numpy as np
import pytest
import torch
from attnloom.block_tables import padded_table, ragged_table
from hypothesis import given, settings
from hypothesis import strategies as st

FORMATS = ("page_table", "radix_tree")


def in_memory(indices, at: int, count: int) -> list[int]:
    """`count` page ids from the `at`-th on, read as a kernel does."""
    address = indices.data_ptr() if isinstance(indices, torch.Tensor) else indices.ctypes.data
    kind = ctypes.c_int64 if str(indices.dtype).endswith("int64") else ctypes.c_int32
    return list((kind * count).from_address(address + at * ctypes.sizeof(kind)))


@st.composite
def tables(draw):
    """A view of a larger array: some rows and columns of it, backwards, transposed, or a field of records."""
    heads = draw(st.sampled_from([0, 0, 2]))
    shape = [draw(st.integers(1, 4)), draw(st.integers(1, 5))]
    steps = [draw(st.integers(1, 3)) for _ in shape]
    whole = [heads] * bool(heads) + [size * step for size, step in zip(shape, steps, strict=True)]
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    table = np.arange(np.prod(whole), dtype=dtype).reshape(whole)
    how = draw(st.sampled_from(["view", "transposed", "backwards", "record", "torch", "torch transposed"]))
    if how.endswith("transposed"):
        table = np.ascontiguousarray(np.swapaxes(table, -1, -2)).swapaxes(-1, -2)
    if how == "record":
        records = np.zeros(table.shape, [("page", dtype), ("more", np.int16)])
        records["page"] = table
        table = records["page"]
    table = table[..., :: steps[0], :: steps[1]]
    if how == "backwards":
        table = table[..., ::-1, ::-1]
    return torch.from_numpy(table) if how.startswith("torch") else table


@settings(max_examples=200, deadline=None)
@given(tables())
def test_any_strides(table):
    requests, width = table.shape[-2:]
    lists = padded_table(table, requests)
    heads = table.shape[0] if table.ndim == 3 else 1
    stride = lists.indices.shape[-1] if lists.per_head else 0
    for head in range(heads):
        for request in range(requests):
            row = table[head, request] if table.ndim == 3 else table[request]
            assert in_memory(lists.indices, head * stride + int(lists.begin[request]), width) == row.tolist()


@given(st.integers(1, 3), st.booleans())
def test_ragged_ones(step, as_torch):
    indices = np.arange(12, dtype=np.int32)[::step]
    given_ids = torch.from_numpy(indices) if as_torch else indices
    lists = ragged_table([0, 1, 4], given_ids)
    assert in_memory(lists.indices, 0, 4) == indices[:4].tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_attention_reads_the_pages_that_are_named(name):
    """Values are their pages' numbers, and keys are equal: the output is the mean of the pages of a request."""
    wide = torch.arange(12, dtype=torch.int32).reshape(2, 6)
    for table in (wide[:, ::2], wide.T.contiguous().T[:, ::2], wide.numpy()[::-1, ::-1][:, :3]):
        pages = table.tolist()
        index = attnloom.storage_format(name).build_index([1, 5], [48, 32], 16, block_tables=table)
        values = torch.arange(12.0).view(12, 1, 1, 1).expand(12, 16, 1, 64).contiguous()
        spec = attnloom.AttentionSpec(["causal"], num_qo_heads=1, num_kv_heads=1, head_dim=64, dtype="float32")
        attn = attnloom.AttentionWrapper(spec)
        attn.plan(index)
        out = attn.run(torch.zeros(6, 1, 64), (torch.zeros_like(values), values))
        assert out[0, 0, 0].item() == pytest.approx(np.mean(pages[0]), rel=1e-6)
        assert out[5, 0, 0].item() == pytest.approx(np.mean(pages[1][:2]), rel=1e-6)
