"""Random masks: the inferred range holds every key that the mask keeps, and what it claims of itself is so."""

import random

import numpy as np
import pytest
import torch
from attnloom import Param, ParamError, Variant
from attnloom.mods.functor import lower_variant
from mods.table import Table, grid

ASCENDING = torch.tensor([0, 0, 1, 1, 1, 4, 4, 6, 6, 6, 6, 7] * 4).sort().values
JUMBLED = torch.tensor([3, 1, 2, 0, 2, 3, 1, 1] * 6)
PER_HEAD = torch.tensor([2, 11, 0, 5], dtype=torch.int32)
COUNT = 70


class Source:
    """Writes random masks as Python that torch and numpy read alike."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def number(self):
        return self.random.choice([0, 1, 2, 3, 5, 7, 8, 16, 20, -1, -4, -9])

    def row(self):
        return self.random.choice(
            [
                "q", f"(q + {self.number()})", f"(q // {self.random.choice([3, 4, 8])})", str(self.number()), "p",
                "(q - p)", "kv_len", "(kv_len - q)", "ASCENDING[q]", "PER_HEAD[h]", "(q % 5)", "(-q)", "(q * 2)", "b",
            ]
        )  # fmt: skip

    def key(self, depth=2):
        if depth == 0:
            return self.random.choice(["kv", "kv", "(q - kv)", "(kv - q)"])
        inner = self.key(depth - 1)
        return self.random.choice(
            [
                inner, f"({inner} + {self.row()})", f"({self.row()} - {inner})", f"(-{inner})",
                f"({inner} * {self.random.choice([2, 3, -2])})", f"({inner} // {self.random.choice([2, 3, 8])})",
                f"({inner} >> 2)", f"({inner} // p)", f"clamp({inner}, -3, 20)", f"minimum({inner}, {self.row()})",
                f"maximum({inner}, {self.row()})", f"abs({inner})", "ASCENDING[kv]", "JUMBLED[kv]",
            ]
        )  # fmt: skip

    def mask(self, depth=3):
        kind = self.random.random()
        if depth == 0 or kind < 0.3:
            sides = [self.key(self.random.choice([0, 1, 2])), self.row()]
            self.random.shuffle(sides)
            return f"({sides[0]} {self.random.choice(['<', '<=', '>', '>=', '==', '!='])} {sides[1]})"
        if kind < 0.36:
            return f"((q - kv) % {self.random.choice([2, 3])} == {self.random.choice([0, 1])})"
        if kind < 0.42:
            return f"({self.row()} < {self.row()})"
        if kind < 0.47:
            return f"where({self.row()} < {self.row()}, {self.mask(depth - 1)}, {self.mask(depth - 1)})"
        if kind < 0.55:
            return f"(~{self.mask(depth - 1)})"
        sign = self.random.choice(["&", "&", "&", "|", "|", "^"])
        return f"({self.mask(depth - 1)} {sign} {self.mask(depth - 1)})"


def _torch_mask(text):
    names = {"clamp": torch.clamp, "abs": torch.abs, "where": torch.where, "torch": torch, "tensor": torch.tensor}
    names |= {"minimum": _tensors(torch.minimum), "maximum": _tensors(torch.maximum)}
    names |= {"ASCENDING": ASCENDING, "JUMBLED": JUMBLED, "PER_HEAD": PER_HEAD}
    return eval(f"lambda b, h, q, kv, *, p, kv_len: torch.as_tensor({text})", names)


def _tensors(function):
    return lambda a, b: function(a, b if isinstance(b, torch.Tensor) else torch.full((), b, dtype=torch.int32))


def _brute(text, sites, p):
    names = {"clamp": np.clip, "abs": np.abs, "where": np.where, "minimum": np.minimum, "maximum": np.maximum}
    names |= {"ASCENDING": ASCENDING.numpy(), "JUMBLED": JUMBLED.numpy(), "PER_HEAD": PER_HEAD.numpy().astype(np.int64)}
    names |= {"b": sites.request, "h": sites.qo_head, "q": sites.q_pos, "kv": sites.kv_pos}
    kept = eval(text, names | {"kv_len": sites.kv_len, "p": p})
    return np.broadcast_to(kept, sites.request.shape).astype(bool)


@pytest.fixture(scope="module")
def masks():
    source = Source(11)
    texts = {f"mask_{i}": source.mask() for i in range(COUNT)}
    variants = [
        Variant.from_mods(name, mask_mod=_torch_mask(text), params=[Param("p", int)]) for name, text in texts.items()
    ]
    return texts, Table(variants, {f"{name}.p": 3 for name in texts})


@pytest.fixture(scope="module")
def all_sites():
    return [grid(30, 37, requests=2, heads=(0, 1, 3)), grid(20, 48, heads=(2,))]


@pytest.mark.parametrize("p", [1, 3, 11])
def test_random_masks(masks, all_sites, p):
    texts, table = masks
    table.bind({f"{name}.p": p for name in texts})
    for name, text in texts.items():
        for sites in all_sites:
            want = _brute(text, sites, p)
            assert not (want & ~table.inside(name, sites)).any(), f"{name}: {text} keeps a key outside of its range"
            np.testing.assert_array_equal(table.keeps(name, sites), want, err_msg=f"{name}: {text}")


def test_random_masks_are_worth_it(masks, all_sites):
    _, table = masks
    ranged = [name for name, variant in table.members.items() if "kv_range" in variant.functors]
    exact = [name for name in ranged if "logits_mask" not in table.members[name].functors]
    assert len(ranged) > COUNT // 2 and len(exact) > COUNT // 5


def test_claims(masks):
    _, table = masks
    sites = grid(48, 1, heads=(1,))
    sites.q_pos = np.arange(48)
    for name, variant in table.members.items():
        if "range_monotone = true" in variant.text:
            lo, hi = table.ranges(name, sites).T[:2]
            assert (np.diff(lo.astype(np.int64)) >= 0).all() and (np.diff(hi.astype(np.int64)) >= 0).all(), name
        if "range_head_uniform = true" in variant.text:
            other = grid(48, 1, heads=(3,))
            other.q_pos = np.arange(48)
            np.testing.assert_array_equal(table.ranges(name, sites), table.ranges(name, other), err_msg=name)


def _lowered(mask, **fields):
    return lower_variant(Variant.from_mods("one", mask_mod=mask, **fields))


def test_what_may_wrap_is_tested_key_by_key():
    for mask in (lambda b, h, q, kv: kv + (2**31 - 1) >= q, lambda b, h, q, kv: kv * 65536 <= q):
        assert _lowered(mask).functors == {"logits_mask"}
    assert _lowered(lambda b, h, q, kv: kv.to(torch.int64) * 65536 <= q).functors == {"kv_range"}


def test_values_that_would_wrap_are_refused():
    variant = Variant.from_mods(
        "one", mask_mod=lambda b, h, q, kv, *, shift: kv + shift <= q, params=[Param("shift", int)]
    )
    table = Table([variant], {"one.shift": 5})
    with pytest.raises(ParamError, match=r"'one.shift' is 2147483647; positions are added to it"):
        table.bind({"one.shift": 2**31 - 1})
    variant = Variant.from_mods(
        "two", mask_mod=lambda b, h, q, kv, *, size: kv // size == q // size, params=[Param("size", int)]
    )
    with pytest.raises(ParamError, match="'two.size' is 0; the mask divides by it"):
        Table([variant], {"two.size": 0})
