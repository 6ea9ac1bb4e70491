"""Bounds of a mask's integer values: the proof that 32 bit sums with positions do not wrap."""

from __future__ import annotations

import torch

from attnloom.mods.limits import LIMIT
from attnloom.mods.lower import op_name

ALIASES = ("alias", "detach", "clone", "_to_copy", "to", "convert_element_type")
"""Operations that return their argument, as another dtype perhaps."""


def bounds_of(integers, node) -> tuple:
    """`(least, greatest, checks)` of an integer node; `(None, None, ...)` where it may wrap.

    Args:
        integers: what else is known of the mask (`attnloom.mods.growth.Integers`).
    """
    lowered = integers.lowered
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point:
        return None, None, frozenset()
    if value.dtype is torch.bool:
        return 0, 1, frozenset()
    limits = torch.iinfo(value.dtype)
    if node.op == "placeholder":
        name = lowered.arguments[node]
        if name in ("q_idx", "kv_idx"):
            return -LIMIT, LIMIT, frozenset()
        if name in lowered.params:
            return -LIMIT, LIMIT, frozenset({("small", name)})
        return 0, LIMIT, frozenset()
    number = getattr(lowered.values.get(node), "number", None)
    if number is not None:
        return int(number), int(number), frozenset()
    source = lowered.views.get(node)
    if source is not None or node.op == "get_attr":
        narrow = max(limits.min, -LIMIT), min(limits.max, LIMIT)
        name = source.field if source is not None else lowered.values[node].text[2:-2]
        return *narrow, frozenset({("small", name)} if limits.max > LIMIT else ())
    if node.op != "call_function":
        return None, None, frozenset()
    found = _BOUNDS.get(op_name(node), lambda *_: None)(integers, node)
    if found is None:
        return limits.min, limits.max, frozenset()
    low, high, checks = found
    if low is None or not limits.min <= low <= high <= limits.max:
        return None, None, frozenset()
    return low, high, checks


def _corners(function):
    """Bounds of a function that is monotone in each argument, from its values at the corners."""

    def bounds(integers, node):
        if node.kwargs:
            return None
        sides = [integers.bounds(arg) for arg in node.args]
        if any(side[0] is None for side in sides):
            return None, None, None
        corners = [function(*values) for values in _product([(low, high) for low, high, _ in sides])]
        if None in corners:
            return None
        return min(corners), max(corners), frozenset().union(*(side[2] for side in sides))

    return bounds


def _product(sides):
    if not sides:
        return [()]
    return [(value, *rest) for value in sides[0] for rest in _product(sides[1:])]


def _remainder_bounds(integers, node):
    divisor = node.args[1]
    if isinstance(divisor, int) and divisor > 0:
        return 0, divisor - 1, frozenset()
    return None


def _clamp_bounds(integers, node):
    low, high, checks = integers.bounds(node.args[0])
    if low is None:
        return None, None, None
    for place, take in ((1, max), (2, min)):
        bound = node.args[place] if len(node.args) > place else node.kwargs.get(("min", "max")[place - 1])
        if isinstance(bound, int):
            low, high = take(low, bound), take(high, bound)
        elif bound is not None:
            return None
    return low, high, checks


def _copy_bounds(integers, node):
    return integers.bounds(node.args[0])


_BOUNDS = {
    "add": _corners(lambda a, b: a + b),
    "sub": _corners(lambda a, b: a - b),
    "rsub": _corners(lambda a, b: b - a),
    "mul": _corners(lambda a, b: a * b),
    "neg": _corners(lambda a: -a),
    "minimum": _corners(min),
    "maximum": _corners(max),
    "clamp_min": _corners(max),
    "clamp_max": _corners(min),
    "floor_divide": _corners(lambda a, b: a // b if b > 0 else None),
    "__rshift__": _corners(lambda a, b: a >> b if 0 <= b < 31 else None),
    "remainder": _remainder_bounds,
    "clamp": _clamp_bounds,
    **dict.fromkeys(ALIASES, _copy_bounds),
}
