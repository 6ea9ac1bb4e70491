"""A Python mod as a graph of aten operations, each with the line of Python that made it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from attrs import frozen
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.overrides import TorchFunctionMode

from attnloom.errors import AttnloomError, ModError
from attnloom.mods.descriptor import name_of
from attnloom.mods.errors import Line, Refusal, refuse

_TORCH = os.path.dirname(torch.__file__) + os.sep
_BRANCH = "torch.where, torch.minimum and torch.maximum, &, | and ~ on what it compares"
_TO_PYTHON = {
    "__bool__": ("decides in Python (if, and, or, not, min, max) by a value that differs from pair to pair", _BRANCH),
    "item": ("takes a Python number out of a tensor", "tensors"),
    "tolist": ("takes Python numbers out of a tensor", "tensors"),
    "numpy": ("leaves torch for numpy", "torch operations"),
    "__array__": ("leaves torch for numpy", "torch operations"),
    **dict.fromkeys(
        ("__int__", "__float__", "__index__", "__complex__"), ("makes a Python number of a tensor", ".to(dtype)")
    ),
    "unbind": ("loops over a tensor or unpacks it", "tensors indexed by integers"),
    "__setitem__": ("writes into a tensor", "operations that return new values"),
}
_ADVICE = {
    "__bool__": "write torch.where(condition, a, b) for a choice, and combine conditions with &, | and ~",
    "item": "keep it a tensor: a 0-d tensor is read anew by each run; or take the number before defining the function",
    "__setitem__": "write torch.where(condition, new, old)",
}


@frozen
class Argument:
    """What a mod is called with while it is traced: a name and an example of the right dtype and rank."""

    name: str
    example: torch.Tensor


@frozen(eq=False)
class Trace:
    """A traced mod.

    Attributes:
        kind: `"score_mod"` or `"mask_mod"`; `title` names the function too.
        module: the `torch.fx.GraphModule`.
        arguments: names of the graph's placeholders, in order.
        lines: node -> the `Line` that made it.
        first_line: where the function is defined.
    """

    kind: str
    title: str
    module: Any
    arguments: tuple[str, ...]
    lines: dict
    first_line: Line | None


def trace(kind: str, function: Callable, positional: list[Argument], named: list[Argument]) -> Trace:
    """Record what `function` computes of 0-d arguments.

    Raises:
        ModError: it branches on data, writes into tensors, or raises something itself; names the line.
    """
    title = f"{kind} {name_of(function)!r}"
    names = [argument.name for argument in named]
    lines: dict = {}
    watch = Watch(lines)

    def flat(*values):
        call = values[: len(positional)]
        with watch:
            return function(*call, **dict(zip(names, values[len(positional) :], strict=True)))

    arguments = [*positional, *named]
    try:
        module = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*(a.example for a in arguments))
    except Refusal as refusal:
        raise refuse(title, watch.line, refusal) from None
    except AttnloomError:
        raise
    except Exception as error:
        where = _last_user_line(error.__traceback__) or watch.line
        raise ModError(f"{title} at {where}: it raised {type(error).__name__}: {error}") from error
    return Trace(kind, title, module, tuple(a.name for a in arguments), lines, _definition(function))


class Watch(TorchFunctionMode):
    """Notes which line makes which node, makes gathers of indexing by 0-d tensors, and stops what is no graph.

    Args:
        lines: filled with node -> `Line`; none: nothing is being recorded.
        replaced: `{id(tensor): other}`: tensors that stand in for captured ones.
    """

    def __init__(self, lines: dict | None = None, replaced: dict[int, torch.Tensor] | None = None):
        super().__init__()
        self.line: Line | None = None
        self._lines = lines
        self._replaced = replaced or {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._lines is not None:
            frame = user_frame(sys._getframe(1))
            self.line = Line.of(frame) if frame is not None else self.line
            name = getattr(func, "__name__", "")
            if name in _TO_PYTHON and getattr(torch.Tensor, name, None) is func:
                what, allowed = _TO_PYTHON[name]
                raise Refusal(what, allowed, _ADVICE.get(name, "compute it before the function is defined"))
        if self._replaced:
            args, kwargs = self._substituted(args), {key: self._substituted(value) for key, value in kwargs.items()}
        result = gather(*args) if func is torch.Tensor.__getitem__ else func(*args, **kwargs)
        if self._lines is not None and (mode := get_proxy_mode()) is not None:
            for node in reversed(mode.tracer.graph.nodes):
                if node in self._lines:
                    break
                self._lines[node] = self.line
        return result

    def _substituted(self, value):
        if isinstance(value, torch.Tensor):
            return self._replaced.get(id(value), value)
        if isinstance(value, (tuple, list)):
            return type(value)(self._substituted(item) for item in value)
        return value


def gather(tensor: torch.Tensor, key) -> torch.Tensor:
    """`tensor[key]` where 0-d integer tensors in `key` choose an element of their dimension, as Python integers do.

    Raises:
        Refusal: slices, masks and index tensors with dimensions.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [k for k in keys if not isinstance(k, torch.Tensor)]:
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[at : at + 1] = [slice(None)] * (tensor.dim() - len(keys) + 1)
    if len(keys) > tensor.dim():
        raise Refusal(
            f"indexes a tensor of {tensor.dim()} dimension(s) with {len(keys)} indices",
            "at most one index a dimension",
            "drop indices, or capture a tensor with as many dimensions",
        )
    indices: list[torch.Tensor | None] = []
    for one in keys:
        if isinstance(one, torch.Tensor):
            indices.append(_index(one))
        elif isinstance(one, slice) and one == slice(None):
            indices.append(None)
        elif isinstance(one, int) and not isinstance(one, bool):
            indices.append(torch.full((), one, dtype=torch.int64))
        else:
            shown = "a slice" if isinstance(one, slice) else f"{one!r}"
            raise Refusal(
                f"indexes a tensor with {shown}", "integers and 0-d integer tensors, one a dimension",
                "slice the tensor before the function is defined",
            )  # fmt: skip
    if all(index is None for index in indices):
        return tensor
    return torch.ops.aten.index.Tensor(tensor, indices)


def _index(index: torch.Tensor) -> torch.Tensor:
    if index.dtype is torch.bool:
        raise Refusal(
            "indexes a tensor with a boolean mask", "0-d integer tensors", "write torch.where(mask, value, other)"
        )
    if index.dtype.is_floating_point:
        raise Refusal("indexes a tensor with a float", "0-d integer tensors", "convert the index: .to(torch.int64)")
    if index.dim() != 0:
        raise Refusal(
            f"indexes a tensor with a tensor of {index.dim()} dimension(s)", "0-d integer tensors",
            "index with one element at a time",
        )  # fmt: skip
    return index


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame that is neither torch's nor of this module."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH):
            return frame
        frame = frame.f_back
    return None


def _last_user_line(traceback) -> Line | None:
    found = None
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH):
            found = Line(file, traceback.tb_lineno, traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    return found


def _definition(function: Callable) -> Line | None:
    code = getattr(function, "__code__", None)
    return Line(code.co_filename, code.co_firstlineno, code.co_name) if code is not None else None
