"""The float64 oracle against the textbook, one contract at a time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attnloom.compose import compose
from attnloom.reference import attention
from attnloom.testing.functors import FunctorSpec

PAGE = 4


def batch(qo_lens, kv_lens, heads=(4, 2), dims=(8, 6), seed=0, dtype=np.float64):
    """q, the caches with keys in permuted pages, an index over them, and each request's keys and values."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((sum(qo_lens), heads[0], dims[0])).astype(dtype)
    pages = [-(-length // PAGE) for length in kv_lens]
    order = rng.permutation(sum(pages) + 2)
    k_cache = np.full((len(order), PAGE, heads[1], dims[0]), np.nan, dtype)
    v_cache = np.full((len(order), PAGE, heads[1], dims[1]), np.nan, dtype)
    width = max(kv_lens, default=0)
    tokens = sum(qo_lens)
    slot, visible = np.full((tokens, width), -1, np.int64), np.zeros((tokens, width), bool)
    kv_pos = np.full((tokens, width), -1, np.int32)
    keys, used, first = [], 0, 0
    for qo_len, kv_len, count in zip(qo_lens, kv_lens, pages, strict=True):
        slots = (order[used : used + count, None] * PAGE + np.arange(PAGE)).reshape(-1)[:kv_len]
        k, v = rng.standard_normal((kv_len, heads[1], dims[0])), rng.standard_normal((kv_len, heads[1], dims[1]))
        k_cache[slots // PAGE, slots % PAGE], v_cache[slots // PAGE, slots % PAGE] = k, v
        slot[first : first + qo_len, :kv_len] = slots
        kv_pos[first : first + qo_len, :kv_len] = np.arange(kv_len)
        visible[first : first + qo_len, :kv_len] = True
        keys.append((k, v))
        used, first = used + count, first + qo_len
    index = SimpleNamespace(
        qo_indptr=np.cumsum([0, *qo_lens]),
        kv_len=np.array(kv_lens),
        q_pos=None,
        levels=(),
        to_dense=lambda: SimpleNamespace(visible=visible, slot=slot, kv_pos=kv_pos),
    )
    return q, k_cache, v_cache, index, keys


def run(variants, data, params=None, **options):
    q, k_cache, v_cache, index, _ = data
    spec = FunctorSpec(
        num_qo_heads=q.shape[1], num_kv_heads=k_cache.shape[2], head_dim=q.shape[2], head_dim_v=v_cache.shape[3]
    )
    from attnloom.plugins import PluginSet

    composition = compose(variants, spec=spec, plugins=options.pop("plugins", PluginSet.default()), params=params)
    return attention(q, k_cache, v_cache, index, composition, composition.resolve(params), sm_scale=0.3, **options)


def textbook(data, visible, transform=lambda x: x):
    """Softmax attention by torch, a request at a time; `visible(i, j, qo_len, kv_len)`."""
    q, _, _, index, keys = data
    group = q.shape[1] // keys[0][0].shape[1]
    outs, lses = [], []
    for request, (k, v) in enumerate(keys):
        rows = torch.tensor(q[index.qo_indptr[request] : index.qo_indptr[request + 1]])
        k, v = (torch.tensor(x).repeat_interleave(group, dim=1) for x in (k, v))
        logits = transform(0.3 * torch.einsum("qhd,khd->hqk", rows, k))
        i, j = torch.arange(len(rows))[:, None], torch.arange(len(k))[None]
        logits = logits.masked_fill(~visible(i, j, len(rows), len(k)), -torch.inf)
        outs.append(torch.einsum("hqk,khd->qhd", logits.softmax(-1).nan_to_num(0.0), v))
        lses.append(logits.logsumexp(-1).T)
    return torch.cat(outs).numpy(), torch.cat(lses).numpy()


def everything(i, j, n, m):
    return torch.ones(n, m, dtype=bool)


def below(i, j, n, m):
    return j <= m - n + i


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 2), (5, 1)])
def test_plain_attention_over_pages(heads):
    data = batch([3, 1, 5], [7, 4, 12], heads)
    for got, want in zip(run([], data), textbook(data, everything), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_causal_is_aligned_to_the_last_key_and_empty_rows_are_empty():
    data = batch([8, 2, 3], [3, 9, 3])
    out, lse = run(["causal"], data)
    want_out, want_lse = textbook(data, below)
    np.testing.assert_allclose(out, want_out, atol=1e-12)
    np.testing.assert_allclose(lse, want_lse, atol=1e-12)
    assert (out[:5] == 0).all() and np.isneginf(lse[:5]).all()


def test_lengths_of_zero():
    out, lse = run(["causal"], batch([2, 0, 3, 1], [0, 5, 4, 0]))
    assert (out[[0, 1, 5]] == 0).all() and np.isneginf(lse[[0, 1, 5]]).all()
    assert np.isfinite(lse[2:5]).any()
    out, lse = run(["causal"], batch([0], [0]))
    assert out.shape == (0, 4, 6)


def test_windows_and_caps():
    data = batch([6, 2], [9, 11])
    got, _ = run(["causal", "sliding_window", "soft_cap"], data, {"sliding_window.left": 2, "soft_cap.cap": 0.5})
    want, _ = textbook(
        data, lambda i, j, n, m: below(i, j, n, m) & (j >= m - n + i - 2), lambda x: 0.5 * torch.tanh(x / 0.5)
    )
    np.testing.assert_allclose(got, want, atol=1e-7)


def test_a_window_of_the_whole_sequence_is_causal():
    data = batch([9], [9])
    wide, _ = run(["causal", "sliding_window"], data, {"sliding_window.left": 8})
    np.testing.assert_array_equal(wide, run(["causal"], data)[0])
    itself, _ = run(["causal", "sliding_window"], data, {"sliding_window.left": 0})
    np.testing.assert_allclose(itself, np.repeat(data[4][0][1], 2, axis=1))


def test_sinks_are_one_more_logit_without_a_value():
    data = batch([3, 2], [5, 0])
    sinks = [0.5, -np.inf, 100.0, -3.0]
    out, lse = run([], data, None)
    with_sinks, lse_with = run(["sinks"], data, {"sinks.sinks": sinks})
    share = np.exp(lse[:3] - np.logaddexp(lse[:3], sinks))
    np.testing.assert_allclose(with_sinks[:3], out[:3] * share[..., None], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lse_with[:3], np.logaddexp(lse[:3], sinks))
    assert (with_sinks[3:] == 0).all()
    np.testing.assert_array_equal(lse_with[3:], np.tile(np.array(sinks), (2, 1)))


def test_sigmoid_weights_are_not_normalised():
    data = batch([2], [5])
    out, lse = run(["causal", "sigmoid"], data, {"sigmoid.bias": -1.0})
    q, _, _, _, [(k, v)] = data
    weights = 1 / (1 + np.exp(-(0.3 * np.einsum("qhd,khd->hqk", q, np.repeat(k, 2, 1)) - 1.0)))
    weights *= np.arange(5)[None, None] <= 3 + np.arange(2)[None, :, None]
    np.testing.assert_allclose(out, np.einsum("hqk,khd->qhd", weights, np.repeat(v, 2, 1)), rtol=1e-9)
    assert np.isnan(lse).all()


def test_rope_turns_by_position_not_by_slot():
    data = batch([1, 4], [6, 4])
    rotated, _ = run(["causal", "rope"], data)
    shifted, _ = run(["causal", "rope"], data, {"rope.offset": 1000})
    np.testing.assert_allclose(rotated, shifted, rtol=1e-6)
    assert np.abs(rotated - run(["causal"], data)[0]).max() > 1e-3


def test_scales_act_on_stored_rows():
    data = batch([3], [6])
    plain, _ = run([], data)
    q, k_cache, v_cache, index, keys = data
    scales = np.array([2.0, 4.0])
    small = (q, k_cache / scales[:, None], v_cache / scales[:, None], index, keys)
    for variants in ([], ["rope"], ["qk_norm"]):
        want, _ = run(variants, data)
        got, _ = run(variants, small, k_scale=scales, v_scale=torch.tensor(scales))
        np.testing.assert_allclose(got, want, atol=1e-6)
    np.testing.assert_allclose(run([], data, v_scale=0.5)[0], plain * 0.5)


def test_float8_and_bfloat16_tensors_are_read_as_they_are():
    q, k_cache, v_cache, index, keys = batch([3], [6])
    fp8 = [torch.tensor(np.nan_to_num(x)).to(torch.float8_e4m3fn) for x in (k_cache, v_cache)]
    wide = [x.double().numpy() for x in fp8]
    half = torch.tensor(q).bfloat16()
    got, _ = run(["causal"], (half, *fp8, index, keys))
    want, _ = run(["causal"], (half.double().numpy(), *wide, index, keys))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shift", [-1e5, 1e4])
def test_huge_logits_keep_their_digits(shift):
    q, k_cache, v_cache, index, keys = batch([2], [5], (2, 1))
    q[..., 0], k_cache[..., 0] = shift / 0.3, 1.0
    keys[0][0][..., 0] = 1.0
    got = run([], (q, k_cache, v_cache, index, keys))
    want = textbook((q, k_cache, v_cache, index, keys), everything)
    np.testing.assert_allclose(got[0], want[0], atol=1e-9)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-12)


def test_a_hidden_key_never_leaks_but_a_visible_nan_does():
    data = batch([4], [6])
    _, k_cache, v_cache, index, _ = data
    want, _ = run(["causal"], data)
    slot = index.to_dense().slot[0, 5]
    k_cache[slot // PAGE, slot % PAGE] = np.nan
    v_cache[slot // PAGE, slot % PAGE] = np.inf
    got, _ = run(["causal"], data)
    np.testing.assert_array_equal(got[:3], want[:3])
    assert np.isnan(got[3]).all()


def test_masks_of_the_index_and_of_the_variants_are_anded():
    from attnloom_bit_mask.packing import pack

    data = batch([3], [5])
    rng = np.random.default_rng(2)
    mine, theirs = rng.random((3, 5)) < 0.7, rng.random((3, 5)) < 0.7
    data[3].to_dense().visible[:] = theirs
    got = run(["bit_mask"], data, pack([mine]))
    want = textbook(data, lambda i, j, n, m: torch.tensor(mine & theirs))
    np.testing.assert_allclose(got[0], want[0], atol=1e-12)


def test_positions_given_by_the_index_are_used():
    data = batch([2], [4])
    data[3].q_pos = np.array([1, 0])
    got, _ = run(["causal"], data)
    want, _ = textbook(data, lambda i, j, n, m: j <= 1 - i)
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_tokens_that_find_a_key_in_different_slots_are_kept_apart():
    data = batch([2], [4])
    _, k_cache, v_cache, index, _ = data
    dense = index.to_dense()
    spare = next(s for s in range(len(k_cache) * PAGE) if s not in dense.slot)
    old = dense.slot[0, 2]
    for cache in (k_cache, v_cache):
        cache[spare // PAGE, spare % PAGE] = cache[old // PAGE, old % PAGE]
    want, _ = run([], data)
    dense.slot[1, 2] = spare
    np.testing.assert_allclose(run([], data)[0], want, atol=1e-12)


def test_value_and_output_transforms(plugins, tmp_path, monkeypatch):
    code = """struct {0} {{
      template <class P, class R> ATTNLOOM_FN void {1}(const P&, R& row, const attnloom::Site& s) const {{ }}
    }};"""
    (tmp_path / "row_refs.py").write_text(
        "class V:\n    def value_transform(self, p, x, s):\n        return x * (1 + s.kv_pos[:, None])\n"
        "class O:\n    def output_transform(self, p, x, s):\n        return x + s.qo_head + 10 * s.q_index[:, None]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.add("val", code.format("Val", "value_transform"), functors={"value_transform"}, reference="row_refs:V")
    plugins.add("out", code.format("Out", "output_transform"), functors={"output_transform"}, reference="row_refs:O")
    data = batch([2], [5])
    got, _ = run(["val", "out"], data, plugins=plugins)
    k, v = data[4][0]
    data[4][0] = k, v * (1 + np.arange(5))[:, None, None]
    want, _ = textbook(data, everything)
    np.testing.assert_allclose(got, want + np.arange(4)[None, :, None] + 10 * np.arange(2)[:, None, None], atol=1e-12)
