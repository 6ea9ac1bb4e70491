"""A score_mod that saturates is seen as a whole, and only if it is one."""

from __future__ import annotations

import attnloom
import pytest
import torch
from attnloom.mods.functor import lower_variant

CAP, OTHER = attnloom.Param("cap", float), attnloom.Param("other", float)

SATURATING = {
    "a number": (lambda s, b, h, q, kv: 30 * torch.tanh(s / 30.0), (), "30.0f"),
    "the other way round": (lambda s, b, h, q, kv: torch.tanh(s / 4.0) * 4.0, (), "4.0f"),
    "below zero": (lambda s, b, h, q, kv: -4 * torch.tanh(s / -4), (), "4.0f"),
    "a parameter": (lambda s, b, h, q, kv, *, cap: cap * torch.tanh(s / cap), (CAP,), "mods::abs(p.cap)"),
}

OTHERS = {
    "another slope": (lambda s, b, h, q, kv: 30 * torch.tanh(s / 29), ()),
    "two parameters": (lambda s, b, h, q, kv, *, cap, other: cap * torch.tanh(s / other), (CAP, OTHER)),
    "an integer": (lambda s, b, h, q, kv, *, cap: cap * torch.tanh(s / cap), (attnloom.Param("cap", int),)),
    "by key": (lambda s, b, h, q, kv: (kv + 1) * torch.tanh(s / (kv + 1)), ()),
    "not of the score": (lambda s, b, h, q, kv: 4.0 * torch.tanh(h / 4.0), ()),
    "more than that": (lambda s, b, h, q, kv: 4.0 * torch.tanh(s / 4.0) + 1, ()),
    "no curve": (lambda s, b, h, q, kv: 4.0 * torch.sigmoid(s / 4.0), ()),
}


def text_of(score_mod, params):
    return lower_variant(attnloom.Variant.from_mods("capped", score_mod=score_mod, params=params)).text


@pytest.mark.parametrize("name", SATURATING)
def test_what_saturates(name):
    score_mod, params, bound = SATURATING[name]
    assert f"soft_clamp(score, {bound})" in text_of(score_mod, params)


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not(name):
    assert "soft_clamp" not in text_of(*OTHERS[name])
