"""Arguments of the wrong kind: an attnloom error that says what was given, and nothing lost."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction

import attnloom
import numpy as np
import pytest
import torch
from attnloom import AttentionSpec, AttentionWrapper, Workspace

DENSE = attnloom.storage_format("dense")


@pytest.fixture(scope="module")
def planned(bench):
    wrapper = AttentionWrapper(bench.spec(), num_threads=1)
    wrapper.plan(DENSE.build_index([2], [3]))
    q, kv = torch.randn(2, 4, 40), torch.randn(1, 3, 2, 40)
    return wrapper, q, kv, wrapper.run(q, (kv, kv))


@pytest.mark.parametrize(
    "fields, error, message",
    [
        ({"variants": None}, attnloom.CompositionError, "None"),
        ({"variants": 3}, attnloom.CompositionError, "3"),
        ({"sm_scale": "big"}, attnloom.UnsupportedError, "'big'"),
        ({"sm_scale": 1e39}, attnloom.UnsupportedError, "1e\\+39"),
        ({"sm_scale": 10**400}, attnloom.UnsupportedError, "number"),
        ({"sm_scale": torch.ones(2)}, attnloom.UnsupportedError, "number"),
    ],
)
def test_fields_of_a_spec(fields, error, message):
    with pytest.raises(error, match=message):
        AttentionSpec(**{"variants": ["causal"], "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 40, **fields})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_requests": -1}, "max_requests.*-1"),
        ({"max_tokens": 1.5}, "max_tokens.*1.5"),
        ({"max_qo_len": "3"}, "max_qo_len.*'3'"),
        ({"max_kv_len": True}, "max_kv_len.*True"),
        ({"max_pages": -5}, "max_pages.*-5"),
        ({"max_levels": []}, r"max_levels.*\[\]"),
        ({"num_threads": 65536}, "num_threads.*65535.*65536"),
        ({"num_workers": 2**32 + 1}, "num_workers.*65535.*4294967297"),
        ({"num_workers": 1.0}, "num_workers.*1.0"),
        ({"workspace": "mine"}, "workspace.*str"),
        ({"name": 3}, "name.*3"),
    ],
)
def test_options_of_a_wrapper(bench, options, message):
    with pytest.raises(attnloom.PlanError, match=message):
        AttentionWrapper(bench.spec(), **options)


def test_no_spec_at_all():
    with pytest.raises(attnloom.PlanError, match="AttentionSpec, got str"):
        AttentionWrapper("causal")


@pytest.mark.parametrize("index", [None, 3, "x", [1], torch.zeros(2)])
def test_no_index_leaves_the_plan(planned, index):
    wrapper, q, kv, expected = planned
    with pytest.raises(attnloom.PlanError, match=f"ComposedIndex.*got a {type(index).__name__}"):
        wrapper.plan(index)
    assert torch.equal(wrapper.run(q, (kv, kv)), expected)


def test_params_that_are_no_mapping(planned):
    wrapper, q, kv, expected = planned
    for call in (
        lambda: wrapper.run(q, (kv, kv), params=[1]), lambda: wrapper.plan(DENSE.build_index([2], [3]), params="cap")
    ):  # fmt: skip
        with pytest.raises(attnloom.ParamError, match=r"mapping such as .*got (\[1\]|'cap')"):
            call()
    assert torch.equal(wrapper.run(q, (kv, kv)), expected)


@pytest.mark.parametrize("kv", [None, 3, "ab", {}, np.zeros((1, 2, 3, 2, 40))])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_no_cache(planned, kv, layout):
    wrapper, q, *_ = planned
    with pytest.raises(attnloom.RunError, match="kv"):
        wrapper.run(q, kv, kv_layout=layout)
    with pytest.raises(attnloom.RunError, match="None|NoneType"):
        wrapper.run(q, (None, None), kv_layout=layout)


def test_sparse_tensors(planned):
    wrapper, q, kv, expected = planned
    for arguments, out in (
        ((q.to_sparse(), (kv, kv)), None), ((q, (kv.to_sparse(), kv)), None), ((q, (kv, kv)), expected.to_sparse())
    ):  # fmt: skip
        with pytest.raises(attnloom.RunError, match=r"layout torch\.sparse_coo"):
            wrapper.run(*arguments, out=out)
    with pytest.raises(attnloom.IndexFormatError, match="sparse"):
        attnloom.storage_format("page_table").build_index([1], [1], 4, block_tables=torch.zeros(1, 1).int().to_sparse())


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e39, 10**400])
def test_scales_that_are_no_float32(planned, scale):
    wrapper, q, kv, expected = planned
    for name in ("k_scale", "v_scale"):
        with pytest.raises(attnloom.RunError, match=f"{name} must be a finite float32"):
            wrapper.run(q, (kv, kv), **{name: scale})
    assert torch.equal(wrapper.run(q, (kv, kv)), expected)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, Fraction, torch.tensor])
def test_scales_are_numbers_of_any_kind(planned, kind):
    wrapper, q, kv, _ = planned
    expected = wrapper.run(q, (kv, kv), k_scale=0.5, v_scale=0.5)
    assert torch.equal(wrapper.run(q, (kv, kv), k_scale=kind(0.5), v_scale=kind(0.5)), expected)


def test_a_workspace_stays_in_its_process():
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(pickle.PicklingError, match="Workspace"):
            leave(Workspace())


def test_attention_of_no_tensors():
    q = torch.randn(2, 4, 2, 8)
    with pytest.raises(attnloom.RunError, match="k must be a torch tensor, got ndarray"):
        attnloom.attention(q, q.numpy(), q)
    with pytest.raises(attnloom.RunError, match="q must be a torch tensor, got NoneType"):
        attnloom.attention(None, q, q)
    for lengths in ("ab", [1.0, 2.0], [[1, 2]], torch.tensor([1, 2], device="meta")):
        with pytest.raises(attnloom.IndexFormatError, match="kv_lens"):
            attnloom.attention(q, q, q, kv_lens=lengths)


@pytest.mark.parametrize("name", [None, 3, ["dense"]])
def test_storage_formats_are_asked_for_by_name(name):
    with pytest.raises(attnloom.UnknownNameError, match="by its name"):
        attnloom.storage_format(name)


def test_levels_without_a_single_form_are_not_batch_invariant(bench):
    wrapper = AttentionWrapper(bench.spec(batch_invariant=True), num_threads=1)
    index = attnloom.storage_format("tree_attention").build_index([2], [5], 4, block_tables=[[0, 1]], parents=[[-1, 0]])
    with pytest.raises(attnloom.PlanError, match="batch_invariant=True.* has 2 .*batch_invariant=False"):
        wrapper.plan(index)
    wrapper.plan(DENSE.build_index([2], [5]))


@pytest.mark.parametrize("name", ["dense", "page_table"])
def test_three_positions_a_token_are_not_accepted_yet(name):
    given = {} if name == "dense" else {"block_tables": np.array([[0]])}
    with pytest.raises(attnloom.IndexFormatError, match=r"q_pos has 2 dimension.*\(3, 4\), expected 1"):
        attnloom.storage_format(name).build_index([4], [4], 16, q_pos=np.zeros((3, 4), np.int32), **given)
