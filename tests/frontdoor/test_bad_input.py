"""What bad input gets: an error that names both values, before anything is written."""

from __future__ import annotations

import pickle
import threading

import attnloom
import numpy as np
import pytest
import torch
from attnloom import AttentionWrapper, Workspace

REQUESTS = [(3, 20), (1, 7), (0, 5)]


@pytest.fixture
def planned(bench, rng):
    """A wrapper with a plan, and tensors that fit it."""
    wrapper = AttentionWrapper(bench.spec(["causal", "soft_cap"]), num_threads=1)
    index, pages = bench.paged(rng, REQUESTS, 16)
    data = bench.tensors(rng, wrapper.spec, index, pages)
    wrapper.plan(index)
    return wrapper, data, data.q, *data.kv


def test_run_before_plan(bench):
    wrapper = AttentionWrapper(bench.spec())
    with pytest.raises(attnloom.NotPlannedError, match="plan"):
        wrapper.run(torch.zeros(1, 4, 40), (torch.zeros(1, 16, 2, 40),) * 2)
    with pytest.raises(attnloom.NotPlannedError):
        wrapper.workspace_size()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda q, k, v: (q[:3], (k, v)), ["3", "4"]),
        (lambda q, k, v: (q[:, :2], (k, v)), ["2", "4"]),
        (lambda q, k, v: (q[..., :39], (k, v)), ["39", "40"]),
        (lambda q, k, v: (q[0], (k, v)), ["3 dimensions"]),
        (lambda q, k, v: (q.half(), (k, v)), ["float16", "float32"]),
        (lambda q, k, v: (q.transpose(1, 2).contiguous().transpose(1, 2), (k, v)), ["stride"]),
        (lambda q, k, v: (q, (k[:, :8], v[:, :8])), ["8", "16"]),
        (lambda q, k, v: (q, (k[:, :, :1], v)), ["1", "2"]),
        (lambda q, k, v: (q, (k, v[:, :, :1])), ["1", "2"]),
        (lambda q, k, v: (q, (k, v[..., :39])), ["39", "40"]),
        (lambda q, k, v: (q, (k.bfloat16(), v)), ["bfloat16", "float32"]),
        (lambda q, k, v: (q, (k.double(), v.double())), ["float64", "float32"]),
        (lambda q, k, v: (q, (k, v[:-1])), ["pages"]),
        (lambda q, k, v: (q, (k, v, v)), ["3"]),
        (lambda q, k, v: (q, k), ["[pages, 2, page_size, kv_heads, dim]"]),
        (lambda q, k, v: (q.requires_grad_(), (k, v)), ["no_grad"]),
        (lambda q, k, v: (q.to("meta"), (k, v)), ["meta"]),
        (lambda q, k, v: (q.numpy(), (k, v)), ["tensor"]),
    ],
)
def test_tensors_that_do_not_fit(planned, change, words):
    wrapper, _, q, k, v = planned
    out = torch.full((4, 4, 40), 7.0)
    bad_q, kv = change(q.clone(), k, v)
    with pytest.raises(attnloom.RunError) as caught:
        wrapper.run(bad_q, kv, out=out)
    for word in words:
        assert word in str(caught.value)
    assert (out == 7.0).all()


@pytest.mark.parametrize(
    "outputs, word",
    [
        ({"out": torch.zeros(3, 4, 40)}, "3"),
        ({"out": torch.zeros(4, 4, 41)}, "41"),
        ({"out": torch.zeros(4, 4, 40, dtype=torch.bfloat16)}, "bfloat16"),
        ({"out": torch.zeros(4, 1, 40).expand(4, 4, 40)}, "overlap"),
        ({"lse": torch.zeros(4, 3)}, "3"),
        ({"lse": torch.zeros(4, 4, dtype=torch.float64)}, "float64"),
        ({"k_scale": torch.ones(3)}, "[3]"),
        ({"v_scale": torch.ones(2, dtype=torch.float64)}, "float64"),
        ({"k_scale": "big"}, "big"),
        ({"kv_layout": "NDH"}, "NDH"),
    ],
)
def test_other_arguments_that_do_not_fit(planned, outputs, word):
    wrapper, data, *_ = planned
    with pytest.raises(attnloom.RunError) as caught:
        wrapper.run(data.q, data.kv, **outputs)
    assert word in str(caught.value)


def test_tensors_without_memory(planned):
    """Of a storage that was given up, as sleeping servers do, or of torch's fake mode."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    wrapper, _, q, k, v = planned
    expected = wrapper.run(q, (k, v), return_lse=True)
    given = {"q": q, "k": k, "v": v, "out": torch.zeros(4, 4, 40), "lse": torch.zeros(4, 4)}
    for name, tensor in given.items():
        freed = tensor.clone()
        freed.untyped_storage().resize_(0)
        with FakeTensorMode(allow_non_fake_inputs=True):
            fake = torch.empty(tensor.shape)
        for bad in (freed, fake):
            q_, k_, v_, out, lse = {**given, name: bad}.values()
            with pytest.raises(attnloom.RunError, match=f"{name} of shape .* has no memory"):
                wrapper.run(q_, (k_, v_), out=out, lse=lse)
    freed = torch.ones(2)
    freed.untyped_storage().resize_(0)
    for bad, told in ((freed, r"of shape \[2\] has no memory"), (torch.ones(2).to_sparse(), "torch.sparse_coo")):
        with pytest.raises(attnloom.RunError, match=f"v_scale .*{told}"):
            wrapper.run(q, (k, v), out=given["out"], v_scale=bad)
    assert not given["out"].any()
    assert all(map(torch.equal, wrapper.run(q, (k, v), return_lse=True), expected))


def test_a_cache_in_the_other_layout_is_told_which_to_pass(planned):
    wrapper, data, q, k, v = planned
    swapped = k.transpose(1, 2), v.transpose(1, 2)
    for kv, layout, hint in ((swapped, "NHD", "HND"), (data.kv, "HND", "NHD")):
        with pytest.raises(attnloom.RunError, match=f"2.*16.*read as {layout}.*pass kv_layout='{hint}'"):
            wrapper.run(q, kv, kv_layout=layout)
        assert torch.equal(wrapper.run(q, kv, kv_layout=hint), wrapper.run(q, data.kv))
    index = attnloom.storage_format("page_table").build_index([1], [5], 16, block_tables=np.array([[0]]))
    new = torch.zeros(1, 2, 40)
    with pytest.raises(attnloom.RunError, match="pages of 16 slots, the cache of 2; .*pass kv_layout='HND'"):
        attnloom.append_kv(new, new, swapped, index)
    for refused in ((k[:, :8], v[:, :8]), (swapped[0], v), (k, v[..., :39])):
        with pytest.raises(attnloom.RunError) as caught:
            wrapper.run(q, refused)
        assert "kv_layout" not in str(caught.value)


def test_an_output_that_requires_a_gradient(planned):
    wrapper, data, *_ = planned
    out = torch.full((4, 4, 40), 7.0, requires_grad=True)
    with pytest.raises(attnloom.RunError, match=r"out of shape \[4, 4, 40\] requires a gradient.*no_grad.*detach"):
        wrapper.run(data.q, data.kv, out=out)
    assert (out == 7.0).all()
    with torch.no_grad():
        assert torch.equal(wrapper.run(data.q, data.kv, out=out), wrapper.run(data.q, data.kv))


def test_page_ids_past_the_end_of_the_cache(bench, planned):
    wrapper, _, q, k, v = planned
    expected = wrapper.run(q, (k, v))
    out = torch.full((4, 4, 40), 7.0)
    with pytest.raises(attnloom.IndexFormatError, match="page"):
        wrapper.run(q, (k[:1], v[:1]), out=out)
    assert (out == 7.0).all()
    assert torch.equal(wrapper.run(q, (k, v)), expected)


TABLE, PADDED = np.array([[3, -7], [0, 1]]), np.array([[3, 2], [0, -1]])


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("page_table", lambda table: {"block_tables": table.astype(np.int32)}),
        ("page_table", lambda table: {"block_tables": torch.from_numpy(table)}),
        ("page_table", lambda table: {"block_tables": table.tolist()}),
        ("page_table", lambda table: {"block_tables": np.stack([table % 4, table])}),
        ("page_table", lambda table: {"kv_indptr": [0, 2, 4], "kv_indices": table.flatten()}),
        ("radix_tree", lambda table: {"block_tables": table}),
        ("tree_attention", lambda table: {"block_tables": table, "parents": [[-1], [-1]]}),
    ],
)
def test_page_ids_below_0_that_a_row_uses(bench, planned, name, needs):
    """As a cache has no such page; padding may hold them."""
    wrapper, _, q, k, v = planned
    q, out, k, v = q[:2], torch.full_like(q[:2], 7.0), torch.zeros_like(k), torch.ones_like(v)
    wrapper.plan(attnloom.storage_format(name).build_index([1, 1], [20, 9], 16, **needs(TABLE)))
    with pytest.raises(attnloom.IndexFormatError, match=r"row 0 uses page -7 \(entry 1 of .*\), the cache has"):
        wrapper.run(q, (k, v), out=out)
    assert (out == 7.0).all()
    wrapper.plan(attnloom.storage_format(name).build_index([1, 1], [20, 9], 16, **needs(PADDED)))
    torch.testing.assert_close(wrapper.run(q, (k, v)), torch.ones_like(out))


def test_a_plan_larger_than_declared_leaves_the_old_one(bench, rng):
    maxima = {
        "max_requests": 3, "max_tokens": 4, "max_qo_len": 3, "max_kv_len": 20, "max_pages": 6, "max_levels": 1
    }  # fmt: skip
    wrapper = AttentionWrapper(bench.spec(), num_threads=1, **maxima)
    index, pages = bench.paged(rng, REQUESTS, 16)
    data = bench.tensors(rng, wrapper.spec, index, pages)
    wrapper.plan(index)
    expected = wrapper.run(data.q, data.kv)
    larger = {
        "requests": [(0, 1)] * 4, "tokens": [(2, 2), (3, 3)], "qo_len": [(4, 4)], "kv_len": [(1, 21)]
    }  # fmt: skip
    for what, requests in larger.items():
        with pytest.raises(attnloom.PlanError, match=rf"{what} \d+.*max_{what}={maxima['max_' + what]}"):
            wrapper.plan(bench.paged(rng, requests, 16)[0])
        assert torch.equal(wrapper.run(data.q, data.kv), expected)
    with pytest.raises(attnloom.PlanError, match=r"pages 20.*max_pages=6"):
        wrapper.plan(bench.paged(rng, [(1, 20)], 1)[0])
    wrapper.plan(bench.paged(rng, REQUESTS, 16)[0])


def test_a_malformed_index_leaves_the_old_plan(bench, planned):
    wrapper, data, *_ = planned
    expected = wrapper.run(data.q, data.kv)
    good, _ = bench.paged(np.random.default_rng(0), [(2, 5)], 16)
    level = good.levels[0]
    bad_level = attnloom.Level(
        row_indptr=[0, 2], kv_len=[9], kv_start=[0], kv_offset=[0], page_begin=[0], indices=level.indices
    )
    bad = attnloom.ComposedIndex(page_size=16, qo_indptr=[0, 2], kv_len=[5], token_request=[0, 0], levels=[bad_level])
    with pytest.raises(attnloom.IndexFormatError):
        wrapper.plan(bad)
    with pytest.raises(attnloom.ParamError, match=r"soft_cap\.cap"):
        wrapper.plan(good, params={"soft_cap.cpa": 3.0})
    assert torch.equal(wrapper.run(data.q, data.kv), expected)


def test_a_page_list_for_other_heads(bench):
    level = attnloom.Level(
        row_indptr=[0, 1], kv_len=[1], kv_start=[0], kv_offset=[0], page_begin=[0], indices=[[0]] * 3, per_head=True
    )
    index = attnloom.ComposedIndex(page_size=16, qo_indptr=[0, 1], kv_len=[1], token_request=[0], levels=[level])
    with pytest.raises(attnloom.PlanError, match="3 kv heads.*2"):
        AttentionWrapper(bench.spec()).plan(index)


def test_names_and_parameters(bench):
    with pytest.raises(attnloom.UnknownNameError, match="soft_cap"):
        AttentionWrapper(bench.spec(["soft_cpa"]))
    with pytest.raises(attnloom.ParamError, match=r"soft_cap\.cap"):
        AttentionWrapper(bench.spec(["soft_cap"], params={"soft_cap.cpa": 1.0}))
    with pytest.raises(attnloom.UnknownNameError, match="tile"):
        AttentionWrapper(bench.spec(tile="fastest"))
    with pytest.raises(attnloom.UnsupportedError, match="t_q 2.*4 query heads"):
        AttentionWrapper(bench.spec(heads=(4, 1), tile=attnloom.Tile(2, 16)))
    spec = bench.windowed()
    wrapper = AttentionWrapper(spec.evolve(params={"sliding_window.left": 3}))
    with pytest.raises(attnloom.ParamError, match=r"sinks\.sinks"):
        wrapper.plan(attnloom.storage_format("dense").build_index([1], [1], 1))
    wrong = {"sinks.sinks": torch.zeros(3)}
    with pytest.raises(attnloom.ParamError, match="3.*4|4.*3"):
        wrapper.plan(attnloom.storage_format("dense").build_index([1], [1], 1), params=wrong)


def test_parameters_frozen_by_the_plan(bench, rng):
    wrapper = AttentionWrapper(bench.windowed(left=4), num_threads=1)
    index, pages = bench.paged(rng, REQUESTS, 16)
    data = bench.tensors(rng, wrapper.spec, index, pages)
    wrapper.plan(index)
    told = r"sliding_window\.left was planned as 4, this run gives 5: .* planned=False of a parameter that no kv_range"
    with pytest.raises(attnloom.RunError, match=told):
        wrapper.run(data.q, data.kv, params={"sliding_window.left": 5})
    wrapper.run(data.q, data.kv, params={"sliding_window.left": 4, "sinks.sinks": torch.zeros(4)})
    with pytest.raises(attnloom.ParamError, match=r"sliding_window\.left"):
        wrapper.run(data.q, data.kv, params={"sliding_window.lfet": 4})
    bench.check(wrapper, index, data, params={"sliding_window.left": 9}, scale=2)


def test_debug_needs_the_sanitizer_preloaded(bench):
    with pytest.raises(attnloom.UnsupportedError, match="LD_PRELOAD"):
        AttentionWrapper(bench.spec(debug=True))


def test_run_parameters_hold_for_one_run(bench, rng):
    wrapper = AttentionWrapper(bench.spec(["causal", "soft_cap"]), num_threads=1)
    index, pages = bench.paged(rng, REQUESTS, 16)
    data = bench.tensors(rng, wrapper.spec, index, pages)
    wrapper.plan(index, params={"soft_cap.cap": 2.0})
    before = wrapper.run(data.q, data.kv)
    once = wrapper.run(data.q, data.kv, params={"soft_cap.cap": 0.5})
    assert torch.equal(wrapper.run(data.q, data.kv), before) and not torch.equal(once, before)
    for given, cap in ((before, 2.0), (once, 0.5)):
        expected, _ = bench.oracle(wrapper, index, data, {"soft_cap.cap": cap})
        assert np.abs(given.numpy() - expected).max() < 1e-5


def test_no_lse_without_softmax(bench, rng):
    wrapper = AttentionWrapper(bench.spec(["causal", "sigmoid"]), num_threads=1)
    index, pages = bench.paged(rng, REQUESTS, 16)
    data = bench.tensors(rng, wrapper.spec, index, pages)
    wrapper.plan(index)
    for options in ({"return_lse": True}, {"lse": torch.zeros(4, 4)}):
        with pytest.raises(attnloom.RunError, match="softmax"):
            wrapper.run(data.q, data.kv, **options)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0), "mps"])
def test_devices_without_a_kernel_family(bench, device):
    with pytest.raises(attnloom.UnsupportedError, match=str(device).partition(":")[0]):
        AttentionWrapper(bench.spec(), device)


def test_options_of_the_wrapper(bench):
    with pytest.raises(attnloom.PlanError, match="num_threads.*0"):
        AttentionWrapper(bench.spec(), num_threads=0)
    wrapper = AttentionWrapper(bench.spec(), name="layer")
    with pytest.raises(attnloom.RunError, match="'layer'"):
        AttentionWrapper(bench.spec(), name="layer")
    with pytest.raises(pickle.PicklingError, match="spec"):
        pickle.dumps(wrapper)
    assert "layer" in repr(wrapper)


def test_two_threads_at_a_time(planned):
    wrapper, data, *_ = planned
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with wrapper._busy:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    with pytest.raises(attnloom.RunError, match="another thread"):
        wrapper.run(data.q, data.kv)
    leave.set()
    thread.join()
    wrapper.run(data.q, data.kv)


def test_workspace_is_exact_and_shared(bench, rng):
    workspace = Workspace()
    one = AttentionWrapper(bench.spec(), num_threads=1, num_workers=4, workspace=workspace)
    two = AttentionWrapper(bench.windowed(), num_threads=1, num_workers=4, workspace=workspace)
    index, pages = bench.paged(rng, [(1, 500)], 16)
    for wrapper in (one, two):
        bench.check(wrapper, index, bench.tensors(rng, wrapper.spec, index, pages))
        assert wrapper.workspace_size() > 0
    assert workspace.nbytes == max(one.workspace_size(), two.workspace_size())
    data = bench.tensors(rng, one.spec, index, pages)
    expected = bench.run(one, data)[0]
    guarded = torch.full((workspace.nbytes // 4 + 64,), 7.0)
    workspace.buffer, workspace.address = guarded, guarded.data_ptr()
    assert torch.equal(one.run(data.q, data.kv), expected)
    assert (guarded[one.workspace_size() // 4 :] == 7.0).all()
