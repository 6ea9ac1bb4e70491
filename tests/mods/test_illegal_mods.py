"""What cannot become a functor says the line, the operation, what is allowed and what to do."""

import pytest
import torch
from attnloom import AttentionSpec, CompositionError, ModError, Param, StaticParam, Variant
from attnloom.mods.functor import lower_variant

TABLE = torch.zeros(4, 8)


def branching(score, b, h, q, kv):
    if q >= kv:
        return score
    return score - 1


def slicing(score, b, h, q, kv):
    return score + TABLE[h, 2:4].sum()


def summing(score, b, h, q, kv):
    row = TABLE[h]
    return score + row.sum()


def unknown_operation(score, b, h, q, kv):
    return torch.special.bessel_j0(score)


def masked_index(score, b, h, q, kv):
    return score + TABLE[q > kv, 0]


def float_index(score, b, h, q, kv):
    return score + TABLE[h, q * 0.5]


def writing(score, b, h, q, kv):
    TABLE[0, 0] = 1.0
    return score


def to_python(score, b, h, q, kv):
    return score + float(q)


def item(score, b, h, q, kv):
    return score + q.item()


def whole_row(score, b, h, q, kv):
    return TABLE[h]


def arithmetic_on_a_table(score, b, h, q, kv):
    return score + (TABLE * 2)[h, 0]


def too_many_indices(score, b, h, q, kv):
    return score + TABLE[b, h, q]


def looping(score, b, h, q, kv):
    for value in TABLE[h]:
        score = score + value
    return score


def nothing(score, b, h, q, kv):
    score + 1


def own_failure(score, b, h, q, kv):
    return score + {}["missing"]


def too_large(score, b, h, q, kv):
    return score + (q + 2**40)


ILLEGAL = {
    branching: (r"if q >= kv:`: it decides in Python .* Allowed: torch.where, .* write torch.where\(condition, a, b\)"),
    slicing: r"TABLE\[h, 2:4\].*indexes a tensor with a slice.*slice the tensor before the function is defined",
    summing: r"row.sum\(\)`: it calls torch's 'sum'\. Allowed: .*add.*tanh.*capture the result",
    unknown_operation: r"bessel_j0\(score\)`: it calls torch's 'special_bessel_j0'\. Allowed: abs, (?!.*(slice|_to))",
    masked_index: r"TABLE\[q > kv, 0\]`: it indexes a tensor with a boolean mask.*torch.where\(mask, value, other\)",
    float_index: r"indexes a tensor with a float. Allowed: 0-d integer tensors.*\.to\(torch\.int64\)",
    writing: r"TABLE\[0, 0\] = 1.0`: it writes into a tensor.*torch.where\(condition, new, old\)",
    to_python: r"float\(q\)`: it makes a Python number of a tensor. Allowed: \.to\(dtype\)",
    item: r"q.item\(\)`: it takes a Python number out of a tensor. Allowed: tensors.*a 0-d tensor is read anew",
    whole_row: r"uses a tensor of 1 dimension\(s\) as if it were a number.*index every dimension",
    arithmetic_on_a_table: r"\(TABLE \* 2\)\[h, 0\]`: it .*tensor of 2 dimension\(s\).*index",
    too_many_indices: r"indexes a tensor of 2 dimension\(s\) with 3 indices. Allowed: at most one index a dimension",
    looping: r"for value in TABLE\[h\]:`: it loops over a tensor or unpacks it. Allowed: tensors indexed by integers",
    nothing: r"returns nothing. Allowed: one value. What to do: end the function with return",
    own_failure: r"in own_failure: `return score \+ \{\}\[\"missing\"\]`: it raised KeyError: 'missing'",
    too_large: r"it uses 1099511627776 as int32. Allowed: -2147483648 to 2147483647. .* int64",
}


@pytest.mark.parametrize("mod", ILLEGAL, ids=lambda mod: mod.__name__)
def test_refused(mod):
    with pytest.raises(ModError, match=ILLEGAL[mod]) as caught:
        lower_variant(Variant.from_mods("illegal", score_mod=mod))
    assert f"score_mod {mod.__name__!r} at {__file__}, line " in str(caught.value)


def test_a_mask_must_be_bool():
    def number(b, h, q, kv):
        return q - kv

    with pytest.raises(ModError, match=r"q - kv`: it returns int32. Allowed: bool.*a comparison, such as value != 0"):
        lower_variant(Variant.from_mods("illegal", mask_mod=number))


def test_signatures():
    with pytest.raises(CompositionError, match=r"takes 3 positional argument\(s\), expected 4: b, h, q_idx, kv_idx"):
        lower_variant(Variant.from_mods("x", mask_mod=lambda b, q, kv: q > kv))
    with pytest.raises(CompositionError, match=r"'window' that is neither .*add Param\('window', \.\.\.\) to params"):
        lower_variant(Variant.from_mods("x", mask_mod=lambda b, h, q, kv, window: q > kv))
    with pytest.raises(
        CompositionError, match="takes 'kv_idx' after 4 positional .*a score_mod takes score, b, h, q_idx"
    ):
        lower_variant(Variant.from_mods("x", mask_mod=lambda score, b, h, q_idx, kv_idx: score))
    with pytest.raises(CompositionError, match="'w' is a StaticParam; a number that the functions close over"):
        lower_variant(Variant.from_mods("x", mask_mod=lambda b, h, q, kv: q > kv, params=[StaticParam("w", int)]))
    with pytest.raises(CompositionError, match="a parameter cannot be called 'kv_len'"):
        lower_variant(Variant.from_mods("x", mask_mod=lambda b, h, q, kv: q > kv, params=[Param("kv_len", int)]))
    with pytest.raises(CompositionError, match="needs a score_mod, a mask_mod or both"):
        Variant.from_mods("x")
    with pytest.raises(CompositionError, match="must be a function or 'package.module:function', got 3"):
        Variant.from_mods("x", score_mod=3)
    with pytest.raises(CompositionError, match="'attnloom.mods.gallery:nowhere' cannot be imported"):
        lower_variant(Variant.from_mods("x", mask_mod="attnloom.mods.gallery:nowhere"))


def test_errors_come_with_the_wrapper():
    spec = AttentionSpec([Variant.from_mods("illegal", score_mod=branching)], 4, 2, 32, dtype="float32")
    import attnloom

    with pytest.raises(ModError, match="if q >= kv"):
        attnloom.AttentionWrapper(spec)


def test_operations_without_advice_are_known():
    from attnloom.mods.ops import OPS, TRACED

    assert set(OPS) > TRACED
