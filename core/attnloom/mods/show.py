"""A node of a traced mod as Python, for people."""

from __future__ import annotations

import torch

from attnloom.mods.lower import Lowered, op_name

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floor_divide": "//", "remainder": "%", "pow": "**",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "logical_and": "&", "logical_or": "|",
    "__rshift__": ">>", "__lshift__": "<<",
}  # fmt: skip
_PREFIX = {"neg": "-", "bitwise_not": "~", "logical_not": "~"}
_SILENT = ("alias", "detach", "clone", "lift_fresh", "lift_fresh_copy")


def show(lowered: Lowered, node, inner: bool = False) -> str:
    """The expression that a node is, in the names of the mod's arguments and captures."""
    if not hasattr(node, "op"):
        return repr(node)
    if node.op == "placeholder":
        return lowered.arguments[node]
    value = lowered.values.get(node)
    if getattr(value, "number", None) is not None:
        return repr(bool(value.number) if value.dtype is torch.bool else value.number)
    if node.op == "get_attr":
        return value.field if hasattr(value, "field") else value.text[2:-2]
    name = op_name(node)
    arguments = [
        show(lowered, arg, True) for arg in node.args if hasattr(arg, "op") or isinstance(arg, (bool, int, float))
    ]
    if name in _INFIX and len(arguments) == 2:
        text = f"{arguments[0]} {_INFIX[name]} {arguments[1]}"
        return f"({text})" if inner else text
    if name in _PREFIX:
        return f"{_PREFIX[name]}{arguments[0]}"
    if name == "index":
        keys = [":" if key is None else show(lowered, key) for key in node.args[1]]
        return f"{show(lowered, node.args[0])}[{', '.join(keys)}]"
    if name == "select":
        return f"{show(lowered, node.args[0])}[{show(lowered, node.args[2])}]"
    if name in _SILENT:
        return show(lowered, node.args[0], inner)
    return f"{name}({', '.join(show(lowered, arg) for arg in node.args if arg is not None)})"
