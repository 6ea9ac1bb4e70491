"""What a function would read if it were called now: tells whether something lowered from it is still right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_DEPTH = 5
_PLAIN = (int, float, bool, str, bytes, type(None))
_NOT_ENTERED = ("torch", "numpy", "math", "builtins")


class Same:
    """An object, equal to itself alone and alive as long as it is compared with."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def read_by(function: Callable) -> tuple:
    """The numbers, strings and objects that `function` closes over, reads as globals or as attributes of either.

    Two results are equal where nothing was rebound in between; a tensor counts as the object it is, whatever it holds.
    """
    names: set[str] = set()
    while True:
        known = len(names)
        found = tuple(_leaves(function, names, _DEPTH, set()))
        if len(names) == known:
            return found


def _leaves(value: Any, names: set[str], depth: int, seen: set[int]) -> Iterator[Any]:
    """What is reached from `value`; adds to `names`, which attributes are looked at by, those that functions use."""
    if isinstance(value, _PLAIN):
        yield type(value), value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if not isinstance(value, (type, ModuleType, MethodType)):  # a method is made anew whenever it is looked up
        yield Same(value)
    if depth == 0 or hasattr(value, "data_ptr"):
        return
    for child in _children(value, names):
        yield from _leaves(child, names, depth - 1, seen)


def _children(value: Any, names: set[str]) -> list:
    if isinstance(value, FunctionType):
        names.update(_names(value.__code__))
        found = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        found += [value.__globals__[name] for name in sorted(names) if name in value.__globals__]
        return [*found, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (list, tuple, dict)):
        return list(value.values() if isinstance(value, dict) else value)
    if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _NOT_ENTERED:
        return []
    if hasattr(value, "func") and hasattr(value, "keywords"):
        return [value.func, value.args, value.keywords]
    call = type(value).__call__ if callable(value) and not isinstance(value, type) else None
    found = [call] if isinstance(call, FunctionType) else []
    return found + [getattr(value, name) for name in sorted(names) if hasattr(value, name)]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
