"""The gallery of Python mods on the device: what they are lowered to is what their functions compute."""

import attnloom
import pytest
import torch
from attnloom import Param, Variant, jit, reference
from attnloom.mods import examples, gallery
from gpu.bench import assert_close

LENGTH = 320
REQUESTS = [(1, 300), (37, 37), (64, 320), (0, 5), (20, 150), (1, 1)]


def _chains(device):
    """Several entries of the gallery a kernel, their tensors on the device."""
    generator = torch.Generator().manual_seed(3)

    def on_device(values):
        return values.to(device)

    slopes = on_device(torch.rand(8, generator=generator))
    table = on_device(torch.randn(8, 16, generator=generator))
    gates = on_device(torch.cumsum(-torch.rand(8, LENGTH, generator=generator) / 8, 1))
    documents = on_device(torch.arange(LENGTH) // 70)
    prefixes = on_device(torch.tensor([100, 5, 200, 0, 30, 1]))
    tree = gallery.tree(LENGTH - 8, on_device(examples.ancestors((-1, 0, 0, 1, 1, 2, 3, 5))))
    cap = Param("cap", float)
    entries = {
        "documents": [("score_mod", gallery.alibi(slopes)), ("mask_mod", gallery.document(documents))],
        "sinks": [("score_mod", gallery.t5_bias(table, on_device(gallery.t5_buckets(16, 64)))),
                  ("mask_mod", gallery.streaming_sinks(4, 40))],
        "prefix": [("score_mod", gallery.forgetting(gates)), ("mask_mod", gallery.prefix_lm(prefixes))],
        "chunks": [("score_mod", gallery.kerple(slopes, slopes + 0.1)), ("mask_mod", gallery.chunked(64)),
                   ("score_mod", gallery.temperature(0.1, 32))],
        "sparse": [("mask_mod", gallery.global_local(30, 5)), ("mask_mod", gallery.dilated_window(90, 3))],
        "structured": [("mask_mod", gallery.block_diffusion(160, 24)), ("mask_mod", tree)],
        "image": [("mask_mod", gallery.neighborhood_2d(16, 20, 7))],
        "capped": [("score_mod", lambda s, b, h, q, kv, *, cap: cap * torch.tanh(s / cap)),
                   ("mask_mod", gallery.sliding_window(50))],
    }  # fmt: skip
    return {
        name: [
            Variant.from_mods(f"mod_{i}", **{kind: mod}, params=[cap] if (name, i) == ("capped", 0) else [])
            for i, (kind, mod) in enumerate(chain)
        ]
        for name, chain in entries.items()
    }


@pytest.fixture(scope="module")
def wrappers():
    from attnloom.kernel import describe
    from attnloom.targets import target_of

    device = torch.device("cuda", 0)
    specs = {
        name: attnloom.AttentionSpec(
            chain, num_qo_heads=8, num_kv_heads=2, head_dim=64, dtype="bfloat16",
            params={"mod_0.cap": 3.0} if name == "capped" else {},
        )
        for name, chain in _chains(device).items()
    }  # fmt: skip
    target = target_of(device)
    jit.prepare([describe(spec, target)[2] for spec in specs.values()], target.toolchain(False))
    return {name: attnloom.AttentionWrapper(spec, device) for name, spec in specs.items()}


NAMES = ("documents", "sinks", "prefix", "chunks", "sparse", "structured", "image", "capped")


@pytest.mark.parametrize("name", NAMES)
def test_gallery(bench, rng, wrappers, name):
    wrapper = wrappers[name]
    index, host, data = bench.batch(rng, wrapper.spec, REQUESTS)
    wrapper.plan(index)
    out, lse = bench.run(wrapper, data)
    composition = wrapper.kernel.composition
    bound = composition.resolve(wrapper.spec.params, device="cuda:0")
    want, want_lse = reference.attention(
        data.q, data.k, data.v, host, composition, bound, sm_scale=wrapper.spec.sm_scale
    )
    assert_close(out, want, 2.5e-2, "out")
    assert_close(lse, want_lse, 1e-2, "lse")


def test_a_captured_tensor_of_the_host_is_refused(wrappers):
    spec = attnloom.AttentionSpec(
        [Variant.from_mods("mod_0", score_mod=gallery.alibi(torch.rand(8)))], 8, 2, 64, dtype="bfloat16"
    )
    with pytest.raises(attnloom.ParamError, match=r"'mod_0.slopes' is on cpu, expected cuda(:0)?; use .to\('cuda"):
        spec_wrapper = attnloom.AttentionWrapper(spec, "cuda")
        spec_wrapper.plan(attnloom.storage_format("dense").build_index([1], [1]))


def test_flex_attention(wrappers):
    from torch.nn.attention.flex_attention import create_block_mask

    q = torch.randn(2, 8, 200, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(2, 2, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    mask = create_block_mask(lambda b, h, q, kv: kv <= q + 40, None, None, 200, 256, device="cuda", BLOCK_SIZE=64)
    out = attnloom.flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    logits = q.float() @ k.float().repeat_interleave(4, 1).transpose(2, 3) / 8
    visible = torch.arange(256, device="cuda") <= torch.arange(200, device="cuda")[:, None] + 40
    want = logits.masked_fill(~visible, -torch.inf).softmax(-1) @ v.float().repeat_interleave(4, 1)
    assert (out.float() - want).abs().max() < 2.5e-2
