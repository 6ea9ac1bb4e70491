"""A score_mod that adds a line to a row's scores is seen as a whole, and only if it is one."""

from __future__ import annotations

import attnloom
import numpy as np
import pytest
import torch
from attnloom.mods.functor import lower_variant

SLOPES, TABLE = torch.rand(8), torch.rand(8, 64)
RATE = attnloom.Param("rate", float)

LINES = {
    "a captured slope": (lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q), (), "score + index * site.distance"),
    "a penalty": (lambda s, b, h, q, kv: s - SLOPES[h] * (q - kv), (), "score + index * site.distance"),
    "subtracted": (lambda s, b, h, q, kv: s - (kv - q) * SLOPES[h], (), "score + -(index) * site.distance"),
    "the other way round": (lambda s, b, h, q, kv: (q - kv) * SLOPES[h] + s, (), "score + -(index) * site.distance"),
    "a number": (lambda s, b, h, q, kv: s - -0.5 * (kv - q), (), "score + -((-0.5f)) * site.distance"),
    "a parameter": (lambda s, b, h, q, kv, *, rate: s + rate * (kv - q), (RATE,), "score + rate * site.distance"),
    "computed": (lambda s, b, h, q, kv: s + torch.exp2(-(h + 1) / 4.0) * (kv - q), (), "site.distance"),
    "of the query's place": (lambda s, b, h, q, kv: s + SLOPES[h] / (q + 1) * (kv - q), (), "site.distance"),
}

OTHERS = {
    "of the key": (lambda s, b, h, q, kv: s + TABLE[h, kv] * (kv - q), ()),
    "of the score": (lambda s, b, h, q, kv: s + s * (kv - q), ()),
    "a scaled score": (lambda s, b, h, q, kv: s * 2 + SLOPES[h] * (kv - q), ()),
    "an absolute distance": (lambda s, b, h, q, kv: s - SLOPES[h] * (kv - q).abs(), ()),
    "another distance": (lambda s, b, h, q, kv: s - SLOPES[h] * (kv - h), ()),
    "an integer": (lambda s, b, h, q, kv: s + 2 * (kv - q), ()),
    "subtracted from": (lambda s, b, h, q, kv: SLOPES[h] * (kv - q) - s, ()),
    "no slope": (lambda s, b, h, q, kv: s + (kv - q), ()),
}


def text_of(score_mod, params):
    return lower_variant(attnloom.Variant.from_mods("tilted", score_mod=score_mod, params=params)).text


@pytest.mark.parametrize("name", LINES)
def test_lines(name):
    score_mod, params, result = LINES[name]
    text = text_of(score_mod, params)
    assert "linear_in_distance = true" in text and result in text and "kv_pos" not in text


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_line(name):
    assert "linear_in_distance" not in text_of(*OTHERS[name])


@pytest.mark.parametrize("name", LINES)
def test_lines_on_the_host(name):
    score_mod, params, _ = LINES[name]
    given = {"tilted.rate": -0.25} if params else {}
    q, k, v = (torch.randn(20, 8, 64) for _ in range(3))
    variant = attnloom.Variant.from_mods("tilted", score_mod=score_mod, params=params)
    out = attnloom.attention(q, k, v, [variant], params=given)
    logits = torch.einsum("qhd,khd->hqk", q.double(), k.double()) / 8
    extra = {"rate": torch.tensor(-0.25)} if params else {}
    for head, i, j in np.ndindex(8, 20, 20):
        at = (torch.tensor(n) for n in (0, head, i, j))
        logits[head, i, j] = score_mod(logits[head, i, j].float(), *at, **extra)
    expected = torch.einsum("hqk,khd->qhd", logits.softmax(-1), v.double())
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)
