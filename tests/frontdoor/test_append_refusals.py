"""What `append_kv` refuses, and that neither cache holds a single new value then."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch

ROWS = torch.ones(3, 2, 8)
TABLE = np.array([[0, 1], [2, 3]], np.int32)


def paged(table=TABLE):
    return attnloom.storage_format("page_table").build_index([1, 2], [3, 5], 4, block_tables=table)


def refused(error, words, *, k=ROWS, v=ROWS, where=None, caches=lambda k, v: (k, v), **options):
    k_cache, v_cache = torch.zeros(4, 4, 2, 8), torch.zeros(4, 4, 2, 8)
    with pytest.raises(error, match=words):
        attnloom.append_kv(k, v, caches(k_cache, v_cache), paged() if where is None else where, **options)
    assert not k_cache.any() and not v_cache.any()


@pytest.mark.parametrize("where", [paged(), [0, 5, 15], np.array([0, 5, 15])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_caches_of_other_shapes(where, dtype):
    rows = {"k": ROWS.to(dtype), "v": ROWS.to(dtype), "where": where}
    refused(attnloom.RunError, r"\[4, 4, 2, 8\].*\[2, 4, 2, 8\]", caches=lambda k, v: (k, v[:2]), **rows)
    refused(attnloom.RunError, r"\[4, 4, 2, 8\].*\[4, 2, 2, 8\]", caches=lambda k, v: (k, v[:, :2]), **rows)
    refused(attnloom.RunError, r"\[4, 4, 2, 8\].*\[2, 8, 2, 8\]", caches=lambda k, v: (k, v.view(2, 8, 2, 8)), **rows)
    refused(attnloom.RunError, r"the k cache.*\[4, 2, 8\]", caches=lambda k, v: (k[0], v[0]), **rows)


def test_page_ids_that_are_none():
    refused(attnloom.IndexFormatError, "page -1", where=paged(np.array([[-1, 0], [2, 3]])))
    refused(attnloom.IndexFormatError, "past the end", where=paged(np.array([[0, 0], [2, 9]])))


@pytest.mark.parametrize("where", ["abc", [0.5, 1.0, 2.0], np.zeros((3, 1), np.int64), [True, False, True], [0, 1, 16]])
def test_slots_that_are_none(where):
    refused(attnloom.IndexFormatError, "slot", where=where)


@pytest.mark.parametrize("where", [3, {1.5}])
def test_where_that_is_nothing(where):
    refused(attnloom.IndexFormatError, "ComposedIndex or an integer slot", where=where)


@pytest.mark.parametrize(
    "rows, words",
    [
        (None, "NoneType"),
        (ROWS.numpy(), "ndarray"),
        (ROWS.int(), "torch.int32"),
        (ROWS.to(torch.complex64), "torch.complex64"),
        (ROWS.to("meta"), "meta"),
        (ROWS[:2], r"\[2, 2, 8\]"),
        (ROWS.clone().requires_grad_(), "gradient"),
    ],
)
def test_rows_that_do_not_fit(rows, words):
    refused(attnloom.RunError, f"k .*{words}", k=rows)
    refused(attnloom.RunError, f"v .*{words}", v=rows)


@pytest.mark.parametrize("scale", ["x", 0, 0.0, float("nan"), float("inf"), [1.0, 0.0], torch.ones(3), 10**400])
def test_scales_that_divide_nothing(scale):
    refused(attnloom.RunError, "k_scale", k_scale=scale)
    refused(attnloom.RunError, "v_scale", v_scale=scale)


def test_caches_that_are_none():
    refused(attnloom.RunError, "kv must be", caches=lambda k, v: None)
    refused(attnloom.RunError, "v cache must be a torch tensor", caches=lambda k, v: (k, None))
