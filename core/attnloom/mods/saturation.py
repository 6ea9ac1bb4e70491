"""`cap * tanh(score / cap)` as a whole: what Gemma 2 and Grok-1 cap their logits with."""

from __future__ import annotations

import torch

from attnloom.mods.lower import Lowered, op_name
from attnloom.mods.types import literal


def saturation_bound(score: Lowered) -> str | None:
    """The C++ text of `|cap|` where a score_mod is `cap * tanh(score / cap)`, its cap a number or a float parameter."""
    product = score.returned
    if not is_call(product, "mul"):
        return None
    for curve, cap in (product.args, reversed(product.args)):
        if is_call(curve, "tanh") and is_call(curve.args[0], "div"):
            divided, by = curve.args[0].args
            if score.arguments.get(divided) == "score" and _same(cap, by):
                return _bound(score, cap)
    return None


def is_call(node, name: str) -> bool:
    """Whether a node, or a number, is the plain call of the operation `name`."""
    return getattr(node, "op", None) == "call_function" and op_name(node) == name and not node.kwargs


def _same(a, b) -> bool:
    numbers = isinstance(a, (int, float)) and isinstance(b, (int, float))
    return a == b if numbers else a is b


def _bound(score: Lowered, cap) -> str | None:
    if isinstance(cap, (int, float)):
        return literal(abs(cap), torch.float32)
    value = cap.meta["val"]
    if score.arguments.get(cap) in score.params and value.dtype is torch.float32 and value.dim() == 0:
        return f"mods::abs({score.statements[cap].text})"
    return None
