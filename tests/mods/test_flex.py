"""`attnloom.flex_attention` beside PyTorch's, evaluated in float64."""

import attnloom
import pytest
import torch
from attnloom import IndexFormatError, RunError, UnsupportedError
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as torch_flex


def tensors(shape_q=(2, 4, 70, 16), shape_k=(2, 2, 90, 16), dim_v=16, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = shape_q, shape_k, (*shape_k[:3], dim_v)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def dense(q, k, v, visible, score=None, scale=None):
    """`(out, lse)` in float64; `visible` broadcasts to [batch, heads, queries, keys]."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.expand(q.shape[0], *x.shape[1:]).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    logits = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    logits = (logits if score is None else score(logits)).masked_fill(~visible, -torch.inf)
    return logits.softmax(-1).nan_to_num(0.0) @ v, logits.logsumexp(-1)


def check(got, want, bound=2e-6):
    error = (got.double() - want) / want.abs().clamp_min(1.0)
    assert error.nan_to_num(0.0).abs().max() <= bound
    assert torch.equal(got.isneginf(), want.isneginf())


def positions(q, k):
    return torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def tilted(score, b, h, q_idx, kv_idx):
    return score + SLOPES[h] * (kv_idx - q_idx)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def test_scores_without_a_mask():
    q, k, v = tensors()
    i, j = positions(q, k)
    out, lse = attnloom.flex_attention(q, k, v, tilted, enable_gqa=True, return_lse=True)
    want, want_lse = dense(q, k, v, torch.ones((), dtype=torch.bool), lambda x: x + SLOPES[:, None, None] * (j - i))
    check(out, want)
    check(lse, want_lse)


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("kv_batch", [1, 2])
def test_a_block_mask_counts_from_the_first_query(batch, kv_batch):
    q, k, v = tensors(shape_k=(kv_batch, 2, 90, 16))
    mask = create_block_mask(causal, batch, None, 70, 90, device="cpu", BLOCK_SIZE=(32, 16))
    i, j = positions(q, k)
    out, aux = attnloom.flex_attention(
        q, k, v, tilted, mask, scale=0.3, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    want, want_lse = dense(q, k, v, i >= j, lambda x: x + SLOPES[:, None, None] * (j - i), scale=0.3)
    check(out, want)
    check(aux.lse, want_lse)
    assert aux.max_scores is None


def by_head(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx < 10 + 20 * h) & (kv_idx <= q_idx + 5 * b)


def test_lists_of_each_head():
    q, k, v = tensors()
    mask = create_block_mask(by_head, 2, 4, 70, 90, device="cpu", BLOCK_SIZE=16)
    i, j = positions(q, k)
    b, h = torch.arange(2)[:, None, None, None], torch.arange(4)[:, None, None]
    visible = (i - j < 10 + 20 * h) & (j <= i + 5 * b)
    out, lse = attnloom.flex_attention(q, k, v, tilted, mask, enable_gqa=True, return_lse=True)
    want, want_lse = dense(q, k, v, visible, lambda x: x + SLOPES[:, None, None] * (j - i))
    check(out, want)
    check(lse, want_lse)


def test_lists_decide_and_full_blocks_skip_the_mask():
    q, k, v = tensors(shape_q=(1, 2, 64, 16), shape_k=(1, 2, 80, 16))
    partial = torch.tensor([[[2, 1, 0, 0]]]), torch.tensor([[[[4, 0, 9, 9, 9], [3, 9, 9, 9, 9], [9] * 5, [9] * 5]]])
    full = torch.tensor([[[1, 0, 0, 2]]]), torch.tensor([[[[2, 0, 0, 0, 0], [0] * 5, [0] * 5, [1, 3, 0, 0, 0]]]])
    mask = BlockMask.from_kv_blocks(
        *(x.int() for x in (*partial, *full)), BLOCK_SIZE=16, mask_mod=lambda b, h, q, kv: kv % 2 == 0,
        seq_lengths=(64, 80), compute_q_blocks=False,
    )  # fmt: skip
    visible = torch.zeros(64, 80, dtype=torch.bool)
    for row, column in ((0, 4), (0, 0), (1, 3)):
        visible[16 * row : 16 * row + 16, 16 * column : 16 * column + 16 : 2] = True
    for row, column in ((0, 2), (3, 1), (3, 3)):
        visible[16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = True
    out, lse = attnloom.flex_attention(q, k, v, None, mask, return_lse=True)
    want, want_lse = dense(q, k, v, visible)
    check(out, want)
    check(lse, want_lse)
    assert not out[0, :, 32:48].any() and lse[0, :, 32:48].isneginf().all()


@pytest.mark.parametrize("layout", ["plain", "from_bshd", "fused", "offset"])
def test_strides(layout):
    q, k, v = tensors(shape_k=(2, 2, 96, 16))
    q, k, v = {
        "plain": lambda: (q, k, v),
        "from_bshd": lambda: tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)),
        "fused": lambda: (q, *torch.cat([k, v], dim=1).split(2, dim=1)),
        "offset": lambda: tuple(torch.cat([x, x], dim=2)[:, :, x.shape[2] :] for x in (q, k, v)),
    }[layout]()
    mask = create_block_mask(causal, None, None, 70, 96, device="cpu", BLOCK_SIZE=(32, 16))
    i, j = positions(q, k)
    check(
        attnloom.flex_attention(q, k, v, tilted, mask, enable_gqa=True),
        dense(q, k, v, i >= j, lambda x: x + SLOPES[:, None, None] * (j - i))[0],
    )


def test_it_is_what_torch_computes():
    q, k, v = tensors(shape_q=(1, 2, 64, 16), shape_k=(1, 2, 80, 16))
    mask = create_block_mask(causal, None, None, 64, 80, device="cpu", BLOCK_SIZE=16)
    for arguments in ((tilted, None), (tilted, mask)):
        ours, theirs = (f(q, k, v, *arguments) for f in (attnloom.flex_attention, torch_flex))
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, atol=3e-6, rtol=0)


def test_under_torch_compile():
    q, k, v = tensors(shape_q=(1, 4, 20, 16), shape_k=(1, 2, 20, 16))
    compiled = torch.compile(attnloom.flex_attention, backend="eager")
    plain = attnloom.flex_attention(q, k, v, tilted, enable_gqa=True)
    torch.testing.assert_close(compiled(q, k, v, tilted, enable_gqa=True), plain, atol=0, rtol=0)


def test_nothing_to_see():
    q, k, v = tensors()
    none = BlockMask.from_kv_blocks(
        torch.zeros(1, 1, 5, dtype=torch.int32), torch.zeros(1, 1, 5, 6, dtype=torch.int32), BLOCK_SIZE=16,
        seq_lengths=(70, 90), compute_q_blocks=False,
    )  # fmt: skip
    out, lse = attnloom.flex_attention(q, k, v, block_mask=none, enable_gqa=True, return_lse=True)
    assert out.shape == (2, 4, 70, 16) and not out.any() and lse.isneginf().all()


def test_errors():
    q, k, v = tensors()
    mask = create_block_mask(causal, None, None, 64, 90, device="cpu", BLOCK_SIZE=16)
    with pytest.raises(IndexFormatError, match="made for 64 queries and 90 keys, q and k have 70 and 90"):
        attnloom.flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    mask = create_block_mask(causal, 3, None, 70, 90, device="cpu", BLOCK_SIZE=16)
    with pytest.raises(IndexFormatError, match="a batch of 3 and 1 head"):
        attnloom.flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    with pytest.raises(IndexFormatError, match="block_mask is a function, no BlockMask: torch's create_block_mask"):
        attnloom.flex_attention(q, k, v, block_mask=causal, enable_gqa=True)
    with pytest.raises(RunError, match="query has 4 heads, key 2: set enable_gqa=True"):
        attnloom.flex_attention(q, k, v)
    with pytest.raises(RunError, match=r"must agree; got query \[2, 4, 70, 16\], key \[2, 2, 90, 16\]"):
        attnloom.flex_attention(q, k, v[:, :1])
    with pytest.raises(UnsupportedError, match="max_scores, which no kernel keeps"):
        attnloom.flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest(max_scores=True))
    with pytest.raises(RunError, match="attnloom computes no gradients"):
        attnloom.flex_attention(q.requires_grad_(), k, v, enable_gqa=True)
