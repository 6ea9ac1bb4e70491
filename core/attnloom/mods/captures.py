"""The tensors that a mod closes over: each once, under a name that a reader of the function would expect."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from attrs import define, field

from attnloom.mods.errors import Refusal
from attnloom.mods.types import STATEMENT, name
from attnloom.variant import _CPP_RESERVED, TensorParam

_DEPTH = 4


@define
class Captures:
    """Captured tensors of one variant, by identity, as tensor parameters.

    Args:
        functions: where names are looked for.
        taken: names that are taken.
    """

    functions: tuple[Callable, ...]
    taken: set[str]
    params: dict[int, TensorParam] = field(factory=dict, init=False)
    _names: dict[int, str] | None = field(default=None, init=False)

    def param(self, tensor: torch.Tensor) -> TensorParam:
        """The parameter that holds `tensor`.

        Raises:
            Refusal: a dtype that no kernel reads.
        """
        known = self.params.get(id(tensor))
        if known is None:
            if tensor.dtype not in STATEMENT:
                allowed = ", ".join(map(name, STATEMENT))
                raise Refusal(f"reads a tensor of dtype {name(tensor.dtype)}", allowed, "convert it with .to(...)")
            known = self.params[id(tensor)] = TensorParam(
                self._name(tensor),
                dtype=name(tensor.dtype),
                shape=("*",) * tensor.dim(),
                value=tensor.detach(),
                planned=False,
                doc=f"Captured by {self._where()}.",
            )
        return known

    def tensors(self) -> dict[int, str]:
        """`{id(tensor): parameter name}` of all that was captured."""
        return {key: param.name for key, param in self.params.items()}

    def _where(self) -> str:
        return " and ".join(getattr(function, "__name__", "a function") for function in self.functions)

    def _name(self, tensor: torch.Tensor) -> str:
        if self._names is None:
            self._names = {}
            for function in self.functions:
                for found, value in _reachable(function, "tensor", _DEPTH, set()):
                    self._names.setdefault(id(value), found)
        wanted = identifier(self._names.get(id(tensor), "tensor"))
        unique, count = wanted, 1
        while unique in self.taken:
            count += 1
            unique = f"{wanted}_{count}"
        self.taken.add(unique)
        return unique


def identifier(text: str) -> str:
    """`text` as the name of a parameter and of a C++ field."""
    plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()).strip("_") or "tensor"
    plain = plain if plain[0].isalpha() else f"t_{plain}"
    return f"{plain}_" if plain in _CPP_RESERVED or keyword.iskeyword(plain) else plain


def _reachable(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that `value` holds, with the names they go by."""
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if depth == 0 or id(value) in seen or isinstance(value, (ModuleType, type, str, bytes, int, float)):
        return
    seen.add(id(value))
    for child_name, child in _children(value, name):
        yield from _reachable(child, child_name, depth - 1, seen)


def _children(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, MethodType):
        yield from ((name, value.__func__), (name, value.__self__))
    elif isinstance(value, dict):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}_{i}", item) for i, item in enumerate(value))
    else:
        for attribute in ("func", "args", "keywords", "__wrapped__"):
            if hasattr(value, attribute):
                yield attribute, getattr(value, attribute)
        yield from getattr(value, "__dict__", {}).items()
        if callable(value) and isinstance(type(value).__call__, FunctionType):
            yield name, type(value).__call__


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield variable, cell.cell_contents
        except ValueError:
            continue
    defaults = function.__defaults__ or ()
    yield from zip(
        function.__code__.co_varnames[: function.__code__.co_argcount][-len(defaults) :], defaults, strict=False
    )
    yield from (function.__kwdefaults__ or {}).items()
    for variable in _global_names(function.__code__):
        if variable in function.__globals__:
            yield variable, function.__globals__[variable]
    if hasattr(function, "__wrapped__"):
        yield "wrapped", function.__wrapped__


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
