"""A traced mod as C++ statements, one a node: what torch computes of 0-d tensors, with torch's dtypes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import define, field, frozen

from attnloom.mods.call import Call
from attnloom.mods.captures import Captures
from attnloom.mods.errors import Refusal, refuse
from attnloom.mods.ops import DISCRETE, OPS, TRACED
from attnloom.mods.trace import Trace
from attnloom.mods.types import cast, is_integer, literal, type_of
from attnloom.mods.values import Scalar, View
from attnloom.variant import _CPP_RESERVED

_TAKEN = _CPP_RESERVED | {"p", "site", "mods", "attnloom", "std"}


@frozen(eq=False)
class Statement:
    """`const TYPE NAME = TEXT;` of one node, and the nodes that it reads."""

    name: str
    type: str
    text: str
    reads: tuple[Any, ...]

    def __str__(self) -> str:
        return f"const {self.type} {self.name} = {self.text};"


@define(eq=False)
class Lowered:
    """A mod in C++: a statement for each node that is computed, and the value of each.

    Attributes:
        values: node -> `Scalar`, `View` or (what is returned alone) a Python number.
        statements: node -> `Statement`, in order.
        returned: the node or number that the mod returns.
        views: node -> the `View` that it loads an element of.
        arguments: placeholder -> the mod's argument; `params` are those that are parameters.
    """

    trace: Trace
    params: frozenset[str] = frozenset()
    arguments: dict[Any, str] = field(factory=dict)
    dependencies: dict[Any, frozenset] = field(factory=dict)
    values: dict = field(factory=dict)
    statements: dict[Any, Statement] = field(factory=dict)
    views: dict[Any, View] = field(factory=dict)
    returned: Any = None

    def body(self, wanted: Iterable) -> list[str]:
        """The statements that the nodes `wanted` need, in order."""
        needed, pending = set(), [node for node in wanted if node in self.statements]
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending += [read for read in self.statements[node].reads if read in self.statements]
        return [str(statement) for node, statement in self.statements.items() if node in needed]

    def text(self, node, dtype: torch.dtype) -> str:
        """The value of a node, or of a Python number, as `dtype`."""
        if isinstance(node, (bool, int, float)):
            return literal(node, dtype)
        value = self.values[node]
        if isinstance(value, View):
            raise Refusal(
                f"uses a tensor of {len(value.free)} dimension(s) as if it were a number",
                "single elements",
                "index every dimension of the tensor first",
            )
        if value.number is not None:
            return literal(value.number, dtype)
        if value.as_float is not None and dtype is torch.float32:
            return value.as_float
        return cast(value.text, value.dtype, dtype)


def lower(
    trace: Trace,
    inputs: dict[str, Scalar | View],
    captures: Captures,
    *,
    params: frozenset[str] = frozenset(),
    fast_math: bool = False,
) -> Lowered:
    """Lower a traced mod.

    Args:
        inputs: for each placeholder what it stands for in C++; a `Scalar`'s text is the expression to read it.
        captures: takes the tensors that the mod closes over.

    Raises:
        ModError: an operation that has no counterpart; names the line.
    """
    lowered = Lowered(trace, params)
    names: set[str] = set(_TAKEN) | set(inputs)
    placeholders = iter(trace.arguments)
    discrete = _discrete(trace.module.graph)
    for node in trace.module.graph.nodes:
        try:
            if node.op == "placeholder":
                name = lowered.arguments[node] = next(placeholders)
                _bind(lowered, node, name, inputs[name])
            elif node.op == "get_attr":
                lowered.values[node] = _captured(trace.module, node, captures)
            elif node.op == "call_function":
                exact = node in discrete
                _call(lowered, node, names, exact=exact, fused=fast_math and not exact, fast=fast_math and not exact)
            elif node.op == "output":
                lowered.returned = _returned(node.args[0])
        except Refusal as refusal:
            line = trace.lines.get(node) or trace.first_line
            raise refuse(trace.title, line, refusal) from None
    return lowered


def _bind(lowered: Lowered, node, name: str, value: Scalar | View) -> None:
    if isinstance(value, Scalar) and value.text != name:
        name = f"{name}_" if name in _TAKEN else name
        lowered.statements[node] = Statement(name, type_of(value.dtype), value.text, ())
        value = Scalar(name, value.dtype, nonnegative=value.nonnegative)
    lowered.values[node] = value


def _captured(module, node, captures: Captures) -> Scalar | View:
    tensor = module
    for part in node.target.split("."):
        tensor = getattr(tensor, part)
    fresh = bool(node.users) and all("lift_fresh" in str(user.target) for user in node.users)
    if fresh and tensor.dim() == 0:
        number = tensor.item()
        return Scalar("", tensor.dtype, number)
    param = captures.param(tensor)
    view = View(param.name, tensor.dtype, (None,) * tensor.dim(), tuple(range(tensor.dim())))
    return view if tensor.dim() else Scalar(view.load(), tensor.dtype)


def _call(lowered: Lowered, node, names: set[str], **modes) -> None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise Refusal(f"calls {op_name(node)}, which returns no tensor", "operations on single elements", _REMEDY)
    if _is_distance(lowered, node):
        text = "mods::sub(site.kv_pos, site.q_pos)"
        lowered.values[node] = Scalar(text, value.dtype, as_float="static_cast<float>(site.distance)")
        return
    call = Call(lowered, node, value.dtype, **modes)
    handler = OPS.get(op_name(node))
    if handler is None:
        raise Refusal(f"calls torch's {op_name(node)!r}", ", ".join(sorted(set(OPS) - TRACED)), _REMEDY)
    result = handler(call)
    if isinstance(result, View) and not result.free:
        lowered.views[node] = result
        result = result.load()
    if isinstance(result, (Scalar, View)):
        lowered.values[node] = result
        return
    if value.dim() != 0:
        raise Refusal(
            f"makes a tensor of {value.dim()} dimension(s) with {op_name(node)!r}", "single elements",
            "index the tensors first, or compute it before the function is defined and capture the result",
        )  # fmt: skip
    name = _fresh(node.name, names)
    reads = tuple(node.all_input_nodes)
    views = [lowered.values[read] for read in reads if isinstance(lowered.values.get(read), View)]
    reads += tuple(_index_nodes(lowered, node)) if views else ()
    lowered.statements[node] = Statement(name, type_of(value.dtype), result, reads)
    lowered.values[node] = Scalar(name, value.dtype, nonnegative=call.nonnegative(result))


def _is_distance(lowered: Lowered, node) -> bool:
    arguments = [lowered.arguments.get(read) for read in node.all_input_nodes]
    return op_name(node) == "sub" and arguments == ["kv_idx", "q_idx"] and not node.kwargs


_REMEDY = "write it with the operations above, or compute it before the function is defined and capture the result"


def _index_nodes(lowered: Lowered, node):
    """The nodes of the indices that a chain of partial indexing gave."""
    for read in node.all_input_nodes:
        if isinstance(lowered.values.get(read), View):
            yield from read.all_input_nodes
            yield from _index_nodes(lowered, read)


def _fresh(name: str, names: set[str]) -> str:
    unique = name
    while unique in names:
        unique += "_"
    names.add(unique)
    return unique


def op_name(node) -> str:
    """The name of the operation of a call, such as `"add"`."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else getattr(node.target, "__name__", str(node.target))


def _returned(value):
    if isinstance(value, (list, tuple)):
        raise Refusal("returns several values", "one value", "return the score, or the mask, alone")
    if value is None:
        raise Refusal("returns nothing", "one value", "end the function with return")
    return value


def _discrete(graph) -> set:
    """The nodes whose rounding can flip a comparison, a floor or an index."""
    found: set = set()
    for node in reversed(graph.nodes):
        decides = node.op == "call_function" and (op_name(node) in DISCRETE or _to_integer(node))
        if decides or node in found:
            found.update(node.all_input_nodes)
    return found


def _to_integer(node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (is_integer(value.dtype) or value.dtype is torch.bool)
