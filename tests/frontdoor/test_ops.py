from __future__ import annotations

import math

import attnloom
import numpy as np
import pytest
import torch
from attnloom.append import token_slots


def sdpa(q, k, v, causal=True):
    """`[batch, tokens, heads, dim]` in float64, bottom-right aligned."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if causal else None
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def random(*shape):
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape, np.float32))


TILE = attnloom.Tile(16, 16)


def test_attention_of_a_batch():
    q, k, v = random(3, 5, 4, 40), random(3, 20, 2, 40), random(3, 20, 2, 40)
    out, lse = attnloom.attention(q, k, v, tile=TILE, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:3]
    assert (out - sdpa(q, k, v)).abs().max() < 1e-5
    assert (attnloom.attention(q, k, v, [], tile=TILE) - sdpa(q, k, v, causal=False)).abs().max() < 1e-5
    short = attnloom.attention(q, k, v, kv_lens=[20, 0, 7], tile=TILE)
    assert (short[2] - sdpa(q[2:], k[2:, :7], v[2:, :7])[0]).abs().max() < 1e-5
    assert (short[1] == 0).all()


def test_attention_of_one_sequence_and_of_packed_ones():
    q, k, v = random(12, 4, 40), random(30, 2, 40), random(30, 2, 40)
    whole = attnloom.attention(q, k, v, tile=TILE)
    assert (whole - sdpa(q[None], k[None], v[None])[0]).abs().max() < 1e-5
    packed = attnloom.attention(q, k, v, qo_lens=[2, 10], kv_lens=[9, 21], tile=TILE)
    assert (packed[2:] - sdpa(q[None, 2:], k[None, 9:], v[None, 9:])[0]).abs().max() < 1e-5
    strided = q.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(attnloom.attention(strided, k, v, tile=TILE), whole)


@pytest.mark.parametrize("q_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_a_cpu_takes_keys_of_any_dtype_beside_any_queries(q_dtype, kv_dtype):
    q, k, v = random(5, 4, 40).to(q_dtype), random(20, 2, 40).to(kv_dtype), (random(20, 2, 40) + 1).to(kv_dtype)
    out = attnloom.attention(q, k, v, tile=TILE, out_dtype="float32")
    # No query or key is rounded to the other's dtype; weights are where products are of bfloat16.
    rounds = q_dtype == torch.bfloat16 and kv_dtype in (torch.bfloat16, torch.float8_e4m3fn)
    assert (out - sdpa(q[None], k[None].float(), v[None].float())[0]).abs().max() < (4e-3 if rounds else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("logit", [1e9, -1e9, 1e30, -1e30])
@pytest.mark.parametrize("tokens, keys", [(1, 3000), (30, 60)])
def test_rows_of_huge_logits_are_means_of_values(dtype, logit, tokens, keys):
    size = abs(logit) ** 0.5
    q, k = (random(tokens, 4, 40).abs() * size).to(dtype), random(keys, 2, 40).abs() * math.copysign(size, logit)
    v = 1 + random(keys, 2, 40).abs()
    out, lse = attnloom.attention(q, k.to(dtype), v.to(dtype), return_lse=True, out_dtype="float32")
    assert ((out > 0.99) & (out < float(v.max()) * 1.01)).all()
    assert (lse.sign() == math.copysign(1, logit)).all() and lse.isfinite().all()


@pytest.mark.parametrize("shape", [(0, 4, 40), (2, 0, 4, 40)])
def test_attention_of_nothing(shape):
    q, k = random(*shape), random(*shape[:-2], 2, 40)
    assert attnloom.attention(q, k, k, tile=TILE).shape == shape
    q = random(*shape[:-3], 3, 4, 40)
    assert (attnloom.attention(q, k, k, tile=TILE) == 0).all()


@pytest.mark.parametrize(
    "shapes, words",
    [
        (((3, 4, 40), (3, 2, 40, 1), (3, 2, 40)), ["[3, 2, 40, 1]"]),
        (((3, 4, 40), (3, 2, 40), (4, 2, 40)), ["[3, 2, 40]", "[4, 2, 40]"]),
        (((3, 4, 40), (3, 2, 41), (3, 2, 40)), ["40", "41"]),
        (((2, 3, 4, 40), (1, 3, 2, 40), (1, 3, 2, 40)), ["2", "1"]),
    ],
)
def test_attention_of_shapes_that_do_not_fit(shapes, words):
    with pytest.raises(attnloom.RunError) as caught:
        attnloom.attention(*(random(*shape) for shape in shapes))
    assert all(word in str(caught.value) for word in words)


def test_attention_of_lengths_that_do_not_add_up():
    q, k = random(3, 4, 40), random(9, 2, 40)
    for lengths, words in (({"kv_lens": [4, 4], "qo_lens": [1, 2]}, "8.*9"), ({"qo_lens": [1]}, "1.*3")):
        with pytest.raises(attnloom.AttnloomError, match=words):
            attnloom.attention(q, k, k, tile=TILE, **lengths)


def test_merge_states():
    out, lse = random(5, 2, 8), random(5, 2)
    empty = torch.full_like(out, float("nan")), torch.full_like(lse, -float("inf"))
    for states in ([(out, lse)], [(out, lse), empty], [empty, (out, lse), empty]):
        merged, merged_lse = attnloom.merge_states(states)
        assert torch.equal(merged, out) and torch.equal(merged_lse, lse)
    merged, merged_lse = attnloom.merge_states([empty, empty])
    assert (merged == 0).all() and torch.isneginf(merged_lse).all()
    far = attnloom.merge_states([(out, lse + 1e4), (out * 3, lse + 1e4)])
    assert torch.allclose(far[0], out * 2) and torch.allclose(far[1], lse + 1e4 + np.log(2))
    half = attnloom.merge_states([(out.bfloat16(), lse), empty])
    assert half[0].dtype == torch.bfloat16 and half[1].dtype == torch.float32
    with pytest.raises(attnloom.RunError, match="at least one"):
        attnloom.merge_states([])
    with pytest.raises(attnloom.RunError, match=r"\[4, 2, 8\].*\[5, 2, 8\]"):
        attnloom.merge_states([(out, lse), (out[1:], lse[1:])])
    with pytest.raises(attnloom.RunError, match=r"\[5\].*\[5, 2, 8\]"):
        attnloom.merge_states([(out, lse[:, 0])])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_state_is_not_hidden_by_the_merge(broken):
    out, lse = random(5, 2, 8), random(5, 2)
    bad = lse.clone()
    bad[3, 1] = broken
    for states in ([(out, bad)], [(out, bad), (out, lse)], [(out, lse), (out, bad)]):
        merged, merged_lse = attnloom.merge_states(states)
        assert merged[3, 1].isnan().all() and not merged_lse[3, 1].isfinite()
        kept = torch.ones(5, 2, dtype=torch.bool)
        kept[3, 1] = False
        assert torch.allclose(merged[kept], out[kept])


@pytest.mark.parametrize(
    "states, words",
    [
        (None, "pairs, got NoneType"),
        (torch.zeros(2), "pairs, got Tensor"),
        ([torch.zeros(2, 2, 2)], r"state 0 must be an \(O, LSE\) pair, got a Tensor"),
        ([(torch.zeros(2, 2, 2),)], "got a tuple of 1"),
        ([(torch.zeros(2, 2, 2), None)], "LSE of state 0 must be a torch tensor, got NoneType"),
        ([(np.zeros((2, 2, 2)), torch.zeros(2, 2))], "O of state 0 must be a torch tensor, got ndarray"),
        ([(torch.zeros(2, 2, 2).int(), torch.zeros(2, 2))], "O of state 0 is torch.int32"),
        (
            [(torch.zeros(2, 2, 2), torch.zeros(2, 2)), (torch.zeros(2, 2, 2, device="meta"), torch.zeros(2, 2))],
            "state 1 is on meta and cpu, state 0 on cpu",
        ),
    ],
)
def test_what_is_no_state(states, words):
    with pytest.raises(attnloom.RunError, match=words):
        attnloom.merge_states(states)


@pytest.mark.parametrize("layout", ["separate", "fused", "hnd", "hnd_fused", "layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_append_then_read_back(bench, rng, layout, dtype):
    index, pages = bench.paged(rng, [(3, 20), (0, 5), (1, 17), (2, 1)], 4)
    k, v = random(6, 2, 8), random(6, 2, 8) + 1
    shape = (pages, 2, 4, 8) if layout.startswith("hnd") else (pages, 4, 2, 8)
    if layout.endswith("fused"):
        kv = torch.zeros(pages, 2, *shape[1:]).to(dtype)
        k_cache, v_cache = kv[:, 0], kv[:, 1]
    elif layout == "layer":
        kv = k_cache, v_cache = tuple(torch.zeros(pages, 3, *shape[1:]).to(dtype)[:, 1] for _ in range(2))
    else:
        kv = k_cache, v_cache = tuple(torch.zeros(shape).to(dtype) for _ in range(2))
    kv_layout = "HND" if layout.startswith("hnd") else "NHD"
    attnloom.append_kv(k, v, kv, index, kv_layout=kv_layout, v_scale=torch.tensor([0.5, 2.0]))
    slots = token_slots(index)
    assert slots[:3].tolist() == index.to_dense().slot[0, 17:20].tolist()
    assert slots[4] == -1, "a query that has no key of its own"
    written = torch.from_numpy(slots)
    written = written[written >= 0]
    for cache, rows in ((k_cache, k), (v_cache, v / torch.tensor([[0.5], [2.0]]))):
        cache = cache.transpose(1, 2) if kv_layout == "HND" else cache
        flat = cache.float().reshape(-1, 2, 8)
        assert torch.equal(flat[written], rows[slots >= 0].to(dtype).float())
        rest = torch.ones(len(flat), dtype=torch.bool)
        rest[written] = False
        assert (flat[rest] == 0).all()


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_append_converts_rows_to_the_caches_dtype(dtype, cache_dtype):
    cache, rows = torch.zeros(1, 4, 2, 8, dtype=cache_dtype), random(3, 2, 8).to(dtype)
    attnloom.append_kv(rows, rows, (cache, cache.clone()), [2, 0, 1])
    assert torch.equal(cache[0, [2, 0, 1]], rows.to(cache_dtype))


def test_append_clamps_to_what_float8_holds():
    cache = torch.zeros(1, 2, 1, 2).to(torch.float8_e4m3fn)
    rows = torch.tensor([[[1e6, -1e6]], [[1.0, 2.0]]])
    attnloom.append_kv(rows, rows, (cache, cache), [0, 1])
    assert cache.float().flatten().tolist() == [448.0, -448.0, 1.0, 2.0]


def test_append_refuses_before_it_writes():
    cache, rows = torch.zeros(2, 4, 2, 8), torch.ones(2, 2, 8)
    kv = cache, cache.clone()
    for where, error, words in (
        ([0, 8], attnloom.IndexFormatError, "slot 8.*8 slots"),
        ([0], attnloom.RunError, "2, 2, 8"),
        ([0.5, 1.5], attnloom.IndexFormatError, "integers"),
        ([[0, 1]], attnloom.RunError, "2, 2, 8"),
    ):
        with pytest.raises(error, match=words):
            attnloom.append_kv(rows, rows, kv, where)
    with pytest.raises(attnloom.RunError, match=r"\[2, 2, 7\]"):
        attnloom.append_kv(rows, rows[..., :7], kv, [0, 1])
    with pytest.raises(attnloom.RunError, match="k_scale has 3"):
        attnloom.append_kv(rows, rows, kv, [0, 1], k_scale=torch.ones(3))
    with pytest.raises(attnloom.RunError, match="v_scale has 3"):
        attnloom.append_kv(rows, rows, kv, [0, 1], v_scale=torch.ones(3))
    assert (kv[0] == 0).all() and (kv[1] == 0).all()
    attnloom.append_kv(rows, rows, kv, [-1, -1])
    attnloom.append_kv(rows[:0], rows[:0], kv, [])
    assert (kv[0] == 0).all()
