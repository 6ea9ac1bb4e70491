"""`score + slope * (kv_idx - q_idx)` as a whole: ALiBi and its like, a line that is added to a row's scores."""

from __future__ import annotations

from attrs import frozen

from attnloom.mods.lower import Lowered, op_name
from attnloom.mods.saturation import is_call

_OF_A_ROW = {"b", "h", "q_idx"}


@frozen
class AddedLine:
    """`sign` times `slope`, a node of float32 or a number, a position of distance."""

    slope: object
    sign: int


def added_line(score: Lowered) -> AddedLine | None:
    """The line that a score_mod adds to its scores, or none if it does anything else.

    The slope may depend on the query's row alone: its head, its position, captured tensors and parameters.
    """
    total = score.returned
    if not (is_call(total, "add") or is_call(total, "sub")):
        return None
    first, second = total.args
    if score.arguments.get(first) == "score":
        product, sign = second, 1 if op_name(total) == "add" else -1
    elif score.arguments.get(second) == "score" and op_name(total) == "add":
        product, sign = first, 1
    else:
        return None
    if not is_call(product, "mul") or str(product.meta["val"].dtype) != "torch.float32":
        return None
    for slope, distance in (product.args, reversed(product.args)):
        direction = _direction(score, distance)
        if direction and _is_of_a_row(score, slope):
            return AddedLine(slope, sign * direction)
    return None


def _direction(score: Lowered, node) -> int:
    """1 for `kv_idx - q_idx`, -1 for `q_idx - kv_idx`, else 0."""
    if not is_call(node, "sub"):
        return 0
    names = [score.arguments.get(read) for read in node.args]
    return {("kv_idx", "q_idx"): 1, ("q_idx", "kv_idx"): -1}.get(tuple(names), 0)


def _is_of_a_row(score: Lowered, node) -> bool:
    """Whether a node is float32 and the same for all keys and scores of a row."""
    if isinstance(node, float):
        return True
    if not hasattr(node, "all_input_nodes") or str(node.meta["val"].dtype) != "torch.float32":
        return False
    pending, seen = [node], set()
    while pending:
        one = pending.pop()
        name = score.arguments.get(one)
        if name is not None and name not in _OF_A_ROW and name not in score.params:
            return False
        if one not in seen:
            seen.add(one)
            pending += one.all_input_nodes
    return True
