"""What each aten operation is in C++. A handler returns the expression, or a `Scalar` or `View` it merely renames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnloom.mods import types
from attnloom.mods.call import Call
from attnloom.mods.errors import Refusal
from attnloom.mods.types import is_integer, literal
from attnloom.mods.values import Scalar, View

DISCRETE = frozenset(("floor", "ceil", "round", "trunc", "floor_divide", "remainder", "fmod", "sign"))
"""Operations by which a rounding error may become a whole step."""

TRACED = frozenset(
    ("_to_copy", "_unsafe_view", "alias", "clone", "convert_element_type", "detach", "lift", "lift_fresh", "index",
     "lift_fresh_copy", "select", "slice", "new_full", "new_ones", "new_zeros", "scalar_tensor", "permute", "reshape",
     "squeeze", "t", "transpose", "view", "rsub", "to", "true_divide", "__lshift__", "__rshift__")
)  # fmt: skip
"""Operations that tracing writes where a mod has something else, such as an index: no advice for its author."""


def _arithmetic(integer: str, float_sign: str, boolean: str | None) -> Callable[[Call], str]:
    def emit(call: Call) -> str:
        a, b = call.text(0), call.text(1)
        alpha = call.argument("alpha", 1)
        if alpha != 1:
            b = (
                f"mods::mul({b}, {literal(alpha, call.out)})"
                if call.out.is_floating_point or is_integer(call.out)
                else b
            )
        if call.out is torch.bool:
            return f"({a} {boolean} {b})"
        if is_integer(call.out):
            return f"mods::{integer}({a}, {b})"
        if float_sign == "*" and not call.fused:
            return call.rounded(f"mods::mul({a}, {b})")
        return call.rounded(f"{a} {float_sign} {b}")

    return emit


def _rsub(call: Call) -> str:
    a, b = call.text(0), call.text(1)
    if is_integer(call.out):
        return f"mods::sub({b}, {a})"
    return call.rounded(f"{b} - {a}")


def _div(call: Call) -> str:
    mode = call.argument("rounding_mode")
    if mode == "floor":
        return _floor_divide(call)
    if mode == "trunc":
        if is_integer(call.out):
            return f"mods::truncated_divide({call.text(0)}, {call.text(1)})"
        return call.rounded(f"mods::trunc(mods::div({call.text(0)}, {call.text(1)}))")
    if call.fast:
        return call.rounded(f"{call.text(0)} / {call.text(1)}")
    return call.rounded(f"mods::div({call.text(0)}, {call.text(1)})")


def _power_of_two(number) -> int | None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1 or number & (number - 1):
        return None
    return number.bit_length() - 1


def _floor_divide(call: Call) -> str:
    a, b = call.text(0), call.text(1)
    if not is_integer(call.out):
        return call.rounded(f"mods::floor_divide({a}, {b})")
    number = call.number(1)
    if (shift := _power_of_two(number)) is not None and call.out in (torch.int32, torch.int64):
        return f"{a} >> {shift}" if shift else a
    return f"mods::floor_divide({a}, {b})" if number else f"mods::floor_divide_any({a}, {b})"


def _remainder(call: Call) -> str:
    a, b = call.text(0), call.text(1)
    if not is_integer(call.out):
        return call.rounded(f"mods::remainder({a}, {b})")
    number = call.number(1)
    if _power_of_two(number) is not None and call.out in (torch.int32, torch.int64):
        return f"{a} & {literal(number - 1, call.out)}"
    return f"mods::remainder({a}, {b})" if number else f"mods::remainder_any({a}, {b})"


def _fmod(call: Call) -> str:
    a, b = call.text(0), call.text(1)
    return f"mods::truncated_remainder({a}, {b})" if is_integer(call.out) else call.rounded(f"mods::fmod({a}, {b})")


def _compare(sign: str) -> Callable[[Call], str]:
    def emit(call: Call) -> str:
        dtype = call.common(0, 1)
        return f"{call.text(0, dtype)} {sign} {call.text(1, dtype)}"

    return emit


def _bitwise(sign: str) -> Callable[[Call], str]:
    def emit(call: Call) -> str:
        return _narrowed(call, f"{call.text(0)} {sign} {call.text(1)}")

    return emit


def _bitwise_not(call: Call) -> str:
    if call.out is torch.bool:
        return f"!{call.text(0)}"
    return _narrowed(call, f"~{call.text(0)}")


def _narrowed(call: Call, text: str) -> str:
    """An integer expression back from what C++ promoted it to."""
    wide = call.out in (torch.bool, torch.int32, torch.int64)
    return text if wide else f"static_cast<{types.type_of(call.out)}>({text})"


def _logical(sign: str) -> Callable[[Call], str]:
    return lambda call: f"{call.text(0, torch.bool)} {sign} {call.text(1, torch.bool)}"


def _shift(name: str) -> Callable[[Call], str]:
    return lambda call: f"mods::{name}({call.text(0)}, {call.text(1)})"


def _where(call: Call) -> str:
    return f"{call.text(0, torch.bool)} ? {call.text(1)} : {call.text(2)}"


def _abs(call: Call) -> str:
    return f"mods::abs({call.text(0)})" if call.out is not torch.bool else call.text(0)


def _neg(call: Call) -> str:
    return f"mods::neg({call.text(0)})" if is_integer(call.out) else f"-{call.text(0)}"


def _extremum(name: str) -> Callable[[Call], str]:
    return lambda call: f"mods::{name}({call.text(0)}, {call.text(1)})"


def _clamp(call: Call) -> str:
    text = call.text(0)
    for at, name in ((1, "maximum"), (2, "minimum")):
        bound = call.argument(at, call.argument(("min", "max")[at - 1]))
        if bound is not None:
            text = f"mods::{name}({text}, {call.lowered.text(bound, call.out)})"
    return text


def _function(name: str, arguments: int = 1) -> Callable[[Call], str]:
    return lambda call: call.math(name, *(call.text(at) for at in range(arguments)))


def _step(name: str) -> Callable[[Call], str]:
    """A function that is the identity on integers."""
    return lambda call: f"mods::{name}({call.text(0)})" if call.out.is_floating_point else call.text(0)


def _round(call: Call) -> str:
    if call.argument("decimals", 0):
        raise Refusal("rounds to decimals", "torch.round(x)", "scale, round and scale back")
    return _step("round")(call)


def _pow(call: Call) -> str:
    exponent = call.number(1)
    base = call.text(0)
    if is_integer(call.out):
        return f"mods::power({base}, {call.text(1)})"
    if exponent == 1:
        return base
    if exponent == 2:
        return call.rounded(f"mods::mul({base}, {base})")
    if exponent == 0.5:
        return call.math("sqrt", base)
    return call.math("pow", base, call.text(1))


def _gelu(call: Call) -> str:
    return call.math("gelu_tanh" if call.argument("approximate", "none") == "tanh" else "gelu", call.text(0))


def _test(name: str) -> Callable[[Call], str]:
    def emit(call: Call) -> str:
        dtype = call.common(0)
        return f"mods::{name}({call.text(0, dtype)})" if dtype.is_floating_point else "false"

    return emit


def _filled(value=None) -> Callable[[Call], Any]:
    """A new 0-d tensor of one number."""

    def emit(call: Call):
        number = value
        if number is None:
            places = {"full": 1, "new_full": 2, "full_like": 1, "scalar_tensor": 0}
            number = call.argument(places[call.node.target.overloadpacket.__name__])
        if not isinstance(number, (bool, int, float)):
            return call.lowered.text(number, call.out)
        if call.node.meta["val"].dim():
            return ""
        return Scalar("", call.out, number)

    return emit


def _same(call: Call):
    """The first argument, as the result's dtype."""
    value = call.value(0)
    if isinstance(value, View):
        if call.out is not value.dtype:
            raise Refusal(
                f"converts a tensor of {len(value.free)} dimension(s) to {types.name(call.out)}", "single elements",
                "index it first and convert the element, or convert it before the function is defined",
            )  # fmt: skip
        return value
    return value if call.out is value.dtype and value.number is not None else call.text(0)


def _reshaped(call: Call):
    if call.node.meta["val"].dim() or not isinstance(call.value(0), Scalar):
        return ""
    return _same(call)


def _index(call: Call):
    view = _view(call)
    indices = call.argument(1)
    chosen = {}
    for dim, index in enumerate(indices):
        if index is not None:
            value = call.lowered.values[index]
            if value.number is not None:
                value = _constant_index(int(value.number))
            chosen[dim] = Scalar(value.text, value.dtype, nonnegative=value.nonnegative)
    return view.at_all(chosen)


def _select(call: Call):
    view = _view(call)
    dim, index = call.argument(1), call.argument(2)
    value = _constant_index(index) if isinstance(index, int) else call.lowered.values[index]
    return view.at(dim % len(view.free), value)


def _constant_index(index: int):
    return Scalar(literal(index, torch.int64), torch.int64, nonnegative=index >= 0)


def _permute(call: Call):
    view = _view(call)
    rank = len(view.free)
    name = call.node.target.overloadpacket.__name__
    order = list(range(rank))
    if name == "permute":
        order = [dim % rank for dim in call.argument(1)]
    elif name == "t" and rank == 2:
        order = [1, 0]
    elif name == "transpose":
        a, b = call.argument(1) % rank, call.argument(2) % rank
        order[a], order[b] = order[b], order[a]
    return view.moved(order)


def _slice(call: Call):
    size = call.node.args[0].meta["val"].shape
    if call.node.meta["val"].shape == size:
        return _view(call)
    raise Refusal(
        "slices a tensor", "indexing with integers and 0-d integer tensors",
        "slice the tensor before the function is defined, and capture the result",
    )  # fmt: skip


def _view(call: Call):
    value = call.value(0)
    if not isinstance(value, View):
        raise Refusal("indexes a single element", "indexing tensors", "drop the index")
    return value


OPS: dict[str, Callable[[Call], Any]] = {
    "add": _arithmetic("add", "+", "||"),
    "sub": _arithmetic("sub", "-", None),
    "mul": _arithmetic("mul", "*", "&&"),
    "rsub": _rsub,
    "div": _div,
    "true_divide": _div,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "neg": _neg,
    "abs": _abs,
    "sign": lambda call: f"mods::sign({call.text(0)})",
    "minimum": _extremum("minimum"),
    "maximum": _extremum("maximum"),
    "clamp": _clamp,
    "clamp_min": lambda call: f"mods::maximum({call.text(0)}, {call.text(1)})",
    "clamp_max": lambda call: f"mods::minimum({call.text(0)}, {call.text(1)})",
    "where": _where,
    "eq": _compare("=="),
    "ne": _compare("!="),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "bitwise_and": _bitwise("&"),
    "bitwise_or": _bitwise("|"),
    "bitwise_xor": _bitwise("^"),
    "bitwise_not": _bitwise_not,
    "logical_and": _logical("&"),
    "logical_or": _logical("|"),
    "logical_xor": _logical("!="),
    "logical_not": lambda call: f"!{call.text(0, torch.bool)}",
    **dict.fromkeys(("__lshift__", "bitwise_left_shift"), _shift("shift_left")),
    **dict.fromkeys(("__rshift__", "bitwise_right_shift"), _shift("shift_right")),
    **{name: _function(name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt")},
    **{name: _function(name) for name in ("tanh", "sigmoid", "silu", "erf", "erfc", "reciprocal")},
    **{name: _function(name) for name in ("sin", "cos", "tan", "atan", "sinh", "cosh")},
    "relu": lambda call: f"mods::maximum({call.text(0)}, {literal(0, call.out)})",
    "gelu": _gelu,
    "atan2": _function("atan2", 2),
    "hypot": _function("hypot", 2),
    "copysign": _function("copysign", 2),
    "pow": _pow,
    "square": lambda call: call.rounded(f"mods::mul({call.text(0)}, {call.text(0)})"),
    "floor": _step("floor"),
    "ceil": _step("ceil"),
    "trunc": _step("trunc"),
    "round": _round,
    "isnan": _test("isnan"),
    "isinf": _test("isinf"),
    "isfinite": _test("isfinite"),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _filled(0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled(1)),
    **dict.fromkeys(("full", "full_like", "new_full", "scalar_tensor"), _filled()),
    **dict.fromkeys(
        ("_to_copy", "to", "convert_element_type", "alias", "detach", "clone", "lift", "lift_fresh", "lift_fresh_copy"),
        _same,
    ),
    **dict.fromkeys(("view", "reshape", "squeeze", "_unsafe_view"), _reshaped),
    "index": _index,
    "select": _select,
    "slice": _slice,
    **dict.fromkeys(("permute", "t", "transpose"), _permute),
}
"""Handlers by the name of the operation."""
