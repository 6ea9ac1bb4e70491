"""The built-in variants, all at once, through the front door and against the oracle on the same index."""

import attnloom
import numpy as np
import pytest
import torch
from attnloom.reference import attention
from attnloom_bit_mask.packing import pack

QO_LENS, KV_LENS, PAGE = [5, 1, 0, 9, 3], [37, 70, 4, 9, 0], 4


def chains():
    rng = np.random.default_rng(0)
    masks = [rng.random((qo, kv)) < 0.8 for qo, kv in zip(QO_LENS, KV_LENS, strict=True)]
    norm = {f"qk_norm.{x}_weight": torch.rand(16) + 0.5 for x in "qk"}
    yield (
        "softmax",
        ["causal", "qk_norm", "rope", "alibi", "soft_cap", "sliding_window", "sinks", "bit_mask"],
        {
            **norm,
            **pack(masks),
            "rope.interleaved": True,
            "rope.rotary_dim": 8,
            "rope.scaling": "yarn",
            "rope.factor": 4.0,
            "soft_cap.cap": 3.0,
            "sliding_window.left": 20,
            "sliding_window.right": 0,
            "sinks.sinks": torch.tensor([0.5, -torch.inf, 2.0, -1.0]),
        },
    )
    yield "sigmoid", ["causal", "rope", "sigmoid"], {"rope.offset": 7, "sigmoid.scale": 2.0, "sigmoid.bias": -1.0}


@pytest.mark.parametrize(("variants", "params"), [pytest.param(*rest, id=name) for name, *rest in chains()])
def test_chains_agree_with_the_oracle(variants, params):
    torch.manual_seed(0)
    spec = attnloom.AttentionSpec(
        variants=variants, num_qo_heads=4, num_kv_heads=2, head_dim=16, head_dim_v=24, dtype="float32", params=params
    )
    pages = [-(-length // PAGE) for length in KV_LENS]
    order = torch.randperm(sum(pages))
    table = torch.zeros(len(KV_LENS), max(pages), dtype=torch.int32)
    for request, ids in enumerate(order.split(pages)):
        table[request, : len(ids)] = ids
    q = torch.randn(sum(QO_LENS), 4, 16)
    cache = torch.randn(len(order), PAGE, 2, 16), torch.randn(len(order), PAGE, 2, 24)
    index = attnloom.storage_format("page_table").build_index(
        qo_lens=QO_LENS, kv_lens=KV_LENS, page_size=PAGE, block_tables=table
    )
    attn = attnloom.AttentionWrapper(spec, device="cpu")
    attn.plan(index)
    from attnloom.compose import compose

    composition = compose(spec.variants, spec=spec, plugins=spec.plugin_set)
    want, want_lse = attention(q, *cache, index, composition, composition.resolve(spec.params), sm_scale=spec.sm_scale)
    if composition.use_softmax:
        out, lse = attn.run(q, cache, return_lse=True)
        np.testing.assert_allclose(lse.numpy(), want_lse, rtol=2e-5, atol=2e-5)
    else:
        out = attn.run(q, cache)
    np.testing.assert_allclose(out.numpy(), want, rtol=2e-5, atol=2e-5)
