"""What is a run-time value and what is compiled in, and what may be pickled."""

import functools
import pickle
import subprocess
import sys

import attnloom
import numpy as np
import pytest
import torch
from attnloom import AttentionSpec, Param, ParamError, TensorParam, Variant, jit
from attnloom.mods.functor import lower_variant
from mods import mods_of_a_package
from mods.table import Table, grid

TILE = attnloom.Tile(16, 32)


def windowed(b, h, q, kv, *, window):
    return (kv <= q) & (q - kv <= window)


def tilted(slopes):
    return lambda score, b, h, q, kv: score + slopes[h] * (kv - q)


def _variants(slopes):
    return [
        Variant.from_mods("tilted", score_mod=tilted(slopes)),
        Variant.from_mods("near", mask_mod=windowed, params=[Param("window", int)]),
    ]


def _tensors(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, heads, 16, generator=generator) for heads in (4, 2, 2)]


def _expected(q, k, v, slopes, window):
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    distance = torch.arange(len(q))[:, None] - torch.arange(len(k))[None]
    logits = torch.einsum("qhd,khd->hqk", q, k) / 4 - slopes.double()[:, None, None] * distance
    logits = logits.masked_fill((distance < 0) | (distance > window), -torch.inf)
    return torch.einsum("hqk,khd->qhd", logits.softmax(-1), v)


def test_fifty_lengths_and_values_are_one_compile():
    errors = []
    before = {entry.key for entry in jit.entries() if entry.kind == "kernel"}
    for length in range(1, 51):
        slopes = torch.rand(4, generator=torch.Generator().manual_seed(length))
        q, k, v = _tensors(length)
        out = attnloom.attention(q, k, v, _variants(slopes), params={"near.window": length // 3}, tile=TILE)
        errors.append((out.double() - _expected(q, k, v, slopes, length // 3)).abs().max().item())
    assert max(errors) < 2e-6
    assert len({entry.key for entry in jit.entries() if entry.kind == "kernel"} - before) == 1


def test_a_distance_is_not_converted():
    slopes = torch.rand(4)
    squared = Variant.from_mods("a", score_mod=lambda s, b, h, q, kv: s + slopes[h] * (kv - q) * (kv - q))
    text = lower_variant(squared).text
    assert "static_cast<float>(site.distance)" in text
    assert "kv_pos" not in text


def test_strided_and_zero_d_captures_share_the_text():
    wide = torch.rand(4, 6)
    texts = {
        lower_variant(Variant.from_mods("a", score_mod=tilted(s))).text for s in (torch.rand(4), wide[:, 2], wide[0])
    }
    assert len(texts) == 1
    scale = torch.tensor(0.5)
    lowered = lower_variant(Variant.from_mods("b", score_mod=lambda s, b, h, q, kv: s * scale))
    assert [(p.name, p.shape) for p in lowered.params] == [("scale", ())]
    two, three = (
        lower_variant(Variant.from_mods("c", score_mod=lambda s, b, h, q, kv, n=n: s * n)).text for n in (2, 3)
    )
    assert two != three


def test_captures_are_told_apart_by_identity():
    table, same = torch.rand(4), torch.rand(4)

    def score(score, b, h, q, kv):
        return score + table[h] * same[h] + table[h]

    def mask(b, h, q, kv):
        return table[h] > same[h]

    lowered = lower_variant(Variant.from_mods("a", score_mod=score, mask_mod=mask))
    assert [p.name for p in lowered.params] == ["table", "same"]


def test_a_changed_tensor_is_read_anew_and_may_be_replaced():
    slopes = torch.full((4,), 0.25)
    spec = AttentionSpec(_variants(slopes), 4, 2, 16, dtype="float32", params={"near.window": 7}, tile=TILE)
    wrapper = attnloom.AttentionWrapper(spec)
    q, k, v = _tensors(20)
    wrapper.plan(attnloom.storage_format("dense").build_index([20], [20]))
    kv = (k[None], v[None])
    for change in (0.5, 2.0):
        slopes.fill_(change)
        torch.testing.assert_close(wrapper.run(q, kv).double(), _expected(q, k, v, slopes, 7), atol=2e-6, rtol=0)
    other = torch.rand(8)[::2]
    out = wrapper.run(q, kv, params={"tilted.slopes": other})
    torch.testing.assert_close(out.double(), _expected(q, k, v, other, 7), atol=2e-6, rtol=0)
    with pytest.raises(attnloom.RunError, match=r"near.window was planned as 7, this run gives 8"):
        wrapper.run(q, kv, params={"near.window": 8})
    with pytest.raises(ParamError, match=r"'tilted.slopes' has shape \[2, 2\], expected \[\*\]"):
        wrapper.run(q, kv, params={"tilted.slopes": torch.rand(2, 2)})
    with pytest.raises(ParamError, match=r"'tilted.slopes' is on meta, expected cpu; use .to\('cpu'\)"):
        wrapper.run(q, kv, params={"tilted.slopes": torch.rand(4, device="meta")})


@pytest.mark.parametrize("shape", [(4, 2), (2, 8), (0, 8), (4, 0), (3, 9)])
def test_a_smaller_tensor_is_no_replacement_of_a_captured_one(shape):
    table = torch.rand(4, 8)
    variant = Variant.from_mods("tilted", score_mod=lambda score, b, h, q, kv: score + table[h, -1 - kv])
    spec = AttentionSpec([variant], 4, 2, 16, dtype="float32", tile=TILE)
    q, k, v = _tensors(8)
    kv, index = (k[None], v[None]), attnloom.storage_format("dense").build_index([8], [8])
    wrapper = attnloom.AttentionWrapper(spec)
    wrapper.plan(index)
    expected = wrapper.run(q, kv)
    larger = torch.full((5, 11), 1e9)
    larger[:4, -8:] = table
    assert torch.equal(wrapper.run(q, kv, params={"tilted.table": larger}), expected)
    given = {"tilted.table": torch.rand(shape)}
    told = rf"'tilted.table' has shape \[{shape[0]}, {shape[1]}\], smaller than the captured tensor's \[4, 8\]"
    with pytest.raises(ParamError, match=told):
        wrapper.plan(index, params=given)
    with pytest.raises(ParamError, match=told):
        wrapper.run(q, kv, params=given)
    with pytest.raises(ParamError, match=told):
        attnloom.AttentionWrapper(spec.evolve(params=given)).plan(index)
    assert torch.equal(wrapper.run(q, kv), expected)


BIAS, FACTOR = torch.tensor([1.0, 2.0, 3.0, 4.0]), 2


class Layer:
    def __init__(self):
        self.bias = torch.zeros(4)

    def score(self, score, b, h, q, kv):
        return score + self.of_head(h) * kv

    def of_head(self, h):
        return self.bias[h]


def of_globals(score, b, h, q, kv):
    return score * FACTOR + BIAS[h] * kv


def test_what_was_rebound_is_read_anew(monkeypatch):
    layer = Layer()
    for function, change in (
        (of_globals, lambda: monkeypatch.setitem(globals(), "BIAS", torch.rand(4))),
        (of_globals, lambda: monkeypatch.setitem(globals(), "FACTOR", 3)),
        (layer.score, lambda: setattr(layer, "bias", torch.ones(4))),
        (functools.partial(layer.score), lambda: setattr(layer, "bias", torch.ones(4))),
        (lambda *values: of_globals(*values), lambda: monkeypatch.setitem(globals(), "FACTOR", 5)),
    ):
        spec = AttentionSpec([Variant.from_mods("a", score_mod=function)], 4, 2, 16, dtype="float32")
        before = spec.read_now()
        assert spec.read_now() == before and hash(spec.read_now()) == hash(before)
        change()
        assert spec.read_now() != before
    q, k, v = _tensors(8)
    slopes = torch.zeros(4)
    variants = _variants(slopes)
    variants[0] = Variant.from_mods("tilted", score_mod=lambda score, b, h, q, kv: score + slopes[h] * (kv - q))
    for _ in range(2):
        out = attnloom.attention(q, k, v, variants, params={"near.window": 5}, tile=TILE)
        torch.testing.assert_close(out.double(), _expected(q, k, v, slopes, 5), atol=2e-6, rtol=0)
        slopes = torch.rand(4)


def test_a_captured_tensor_of_another_device():
    spec = AttentionSpec(_variants(torch.rand(4, device="meta")), 4, 2, 16, dtype="float32", tile=TILE)
    index = attnloom.storage_format("dense").build_index([20], [20])
    with pytest.raises(ParamError, match=r"'tilted.slopes' is on meta, expected cpu; use .to\('cpu'\)"):
        attnloom.AttentionWrapper(spec).plan(index, params={"near.window": 7})


def test_declared_tensors():
    def score(score, b, h, q, kv, *, bias):
        return score + bias[h, kv]

    variant = Variant.from_mods("biased", score_mod=score, params=[TensorParam("bias", shape=("num_qo_heads", "*"))])
    bias = torch.rand(4, 9) * 3
    table, sites = Table([variant], {"biased.bias": bias}), grid(9, 9, heads=(0, 3))
    want = bias.numpy()[sites.qo_head, sites.kv_pos]
    np.testing.assert_array_equal(table.scores("biased", np.zeros(len(want)), sites), want)


def test_positions_are_aligned_with_the_last_key():
    q, k, v = _tensors(30)
    slopes = torch.rand(4)
    lengths = {"qo_lens": np.array([5, 0, 4]), "kv_lens": np.array([12, 3, 15])}
    out = attnloom.attention(q[:9], k, v, _variants(slopes), params={"near.window": 6}, tile=TILE, **lengths)
    for tokens, keys in ((slice(0, 5), slice(0, 12)), (slice(5, 9), slice(15, 30))):
        whole = torch.zeros(keys.stop - keys.start, 4, 16)
        whole[-(tokens.stop - tokens.start) :] = q[tokens]
        want = _expected(whole, k[keys], v[keys], slopes, 6)[-(tokens.stop - tokens.start) :]
        torch.testing.assert_close(out[tokens].double(), want, atol=2e-6, rtol=0)


def test_by_reference():
    assert "torch" not in _imports("from attnloom.variant import Variant; Variant.from_mods('a', mask_mod='m:f')")
    name = mods_of_a_package.__name__
    variant = Variant.from_mods("near", mask_mod=f"{name}:near", score_mod=f"{name}:half")
    assert lower_variant(variant).functors == {"logits_transform", "kv_range"}


def _imports(code):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_pickling():
    def spec(mod):
        return AttentionSpec([Variant.from_mods("a", mask_mod=mod)], 4, 2, 16, dtype="float32")

    for mod in (mods_of_a_package.near, f"{mods_of_a_package.__name__}:near"):
        again = pickle.loads(pickle.dumps(spec(mod)))
        assert again == spec(mod)
    for mod in (lambda b, h, q, kv: q > kv, tilted(torch.rand(4))):
        with pytest.raises(pickle.PicklingError, match="another process cannot import; move it to the top level"):
            pickle.dumps(spec(mod))


def test_explanation_says_what_was_inferred():
    spec = AttentionSpec(_variants(torch.rand(4)), 4, 2, 16, dtype="float32", params={"near.window": 3})
    text = str(attnloom.explain(spec, compile=False))
    assert "lowered from Python" in text
    assert "kv_range inferred from: kv_idx <= q_idx" in text
    assert "kv_range inferred from: (q_idx - kv_idx) <= window" in text
    assert "the range is the mask: no key is tested" in text
    assert "tilted.slopes = float32 tensor [4]" in text
