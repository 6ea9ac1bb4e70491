"""Which keys a mask can keep, for one query row: intervals of `kv_idx`, found by looking at the mask's comparisons.

Every comparison of something that grows with `kv_idx` against something that is the same for all keys of the row is a
half-line or an interval; `&`, `|` and `~` combine them. What is not understood is taken to keep every key, so that the
result holds all keys that the mask keeps, and is exact where everything was understood.
"""

from __future__ import annotations

import torch
from attrs import evolve, field, frozen

from attnloom.mods.bounds import ALIASES
from attnloom.mods.growth import Growth, Integers, Term
from attnloom.mods.lower import Lowered, op_name
from attnloom.mods.show import show

MAX_INTERVALS = 8
"""More intervals than this are not followed."""

_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_AND, _OR = ("bitwise_and", "logical_and", "mul"), ("bitwise_or", "logical_or", "add")
_NOT, _XOR = ("bitwise_not", "logical_not"), ("bitwise_xor", "logical_xor")


@frozen
class Region:
    """A set of keys, as a C++ expression of type `mods::Region<count>`.

    Attributes:
        gate: it is all keys or none, by the row's condition `text`.
        count: intervals it may have.
        exact: no key was added for want of understanding.
        monotone: its one interval's ends never fall as the query's position grows.
    """

    text: str
    gate: bool = False
    count: int = 1
    exact: bool = True
    monotone: bool = False
    nodes: frozenset = frozenset()
    checks: frozenset = frozenset()
    sorted: frozenset = frozenset()

    def joined(self, text: str, other: Region, **changes) -> Region:
        """A region made of two."""
        return Region(
            text,
            **{"exact": self.exact and other.exact, **changes},
            nodes=self.nodes | other.nodes,
            checks=self.checks | other.checks,
            sorted=self.sorted | other.sorted,
        )


@frozen
class Inferred:
    """What was found out of a mask.

    Attributes:
        region: the keys to look at, `parts` those of which it is the common ones; none: nothing was found.
        residual: parts of the mask that must still be tested key by key, all of which must hold.
        bounded: the parts that `region` comes from, as Python; `tested` the residual ones.
        head_uniform: whether the region is the same for all heads.
        reads: names of the parameters that the region reads.
    """

    region: Region | None
    residual: tuple
    parts: tuple[Region, ...] = ()
    bounded: tuple[str, ...] = ()
    tested: tuple[str, ...] = ()
    head_uniform: bool = True
    reads: frozenset[str] = frozenset()


def infer(lowered: Lowered) -> Inferred:
    """The range of a lowered mask_mod and what it leaves to be tested."""
    root = lowered.returned
    parts = [part for part in _conjuncts(root) if not _is_true(lowered, part)] or [root]
    finder = _Finder(lowered, Integers(lowered))
    found = [(part, region) for part in parts if (region := finder.region(part, False)) is not None]
    exact = [part for part, region in found if region.exact]
    total = _all_of([region for _, region in found if region.exact])
    decided = total is not None and total.count <= 2
    bounded = {part: region for part, region in found if region.exact}
    for part, region in found:
        if region.exact:
            continue
        joined = region if total is None else _both(total, region)
        if total is None or joined.count <= max(2, total.count):
            total = joined
            bounded[part] = region
    if total is None:
        return Inferred(None, (root,))
    residual = tuple(part for part in parts if part not in exact) if decided else (root,)
    depends = frozenset().union(*(finder.integers.depends(node) for node in total.nodes))
    return Inferred(
        total,
        residual,
        tuple(bounded.values()),
        tuple(show(lowered, part) for part in bounded),
        tuple(show(lowered, part) for part in residual),
        not depends & {"h", "kv_head"},
    )


def _conjuncts(node) -> list:
    conjunction = hasattr(node, "op") and node.op == "call_function" and op_name(node) in _AND
    if conjunction and all(hasattr(part, "op") and _is_bool(part) for part in (node, *node.args)):
        return [part for arg in node.args for part in _conjuncts(arg)]
    return [node]


def _is_true(lowered: Lowered, node) -> bool:
    """Whether it is a constant that hides nothing, as PyTorch's `and_masks` begins with."""
    return hasattr(node, "op") and bool(getattr(lowered.values[node], "number", None))


def _is_bool(node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


def _all_of(regions: list[Region]) -> Region | None:
    total = None
    for region in regions:
        total = region if total is None else _both(total, region)
    return total


def _both(a: Region, b: Region) -> Region:
    if a.gate and b.gate:
        return a.joined(f"({a.text} & {b.text})", b, gate=True)
    if a.gate or b.gate:
        gate, other = (a, b) if a.gate else (b, a)
        return other.joined(f"mods::only_if({gate.text}, {other.text})", gate, count=other.count)
    count = a.count + b.count - 1
    return a.joined(
        f"mods::both({a.text}, {b.text})", b, count=count, monotone=a.monotone and b.monotone and count == 1
    )


def _either(a: Region, b: Region) -> Region | None:
    if a.gate and b.gate:
        return a.joined(f"({a.text} | {b.text})", b, gate=True)
    if a.gate or b.gate:
        gate, other = (a, b) if a.gate else (b, a)
        return other.joined(f"mods::all_if({gate.text}, {other.text})", gate, count=other.count)
    if a.count + b.count > MAX_INTERVALS:
        return None
    return a.joined(f"mods::either({a.text}, {b.text})", b, count=a.count + b.count)


@frozen(eq=False)
class _Finder:
    lowered: Lowered
    integers: Integers
    _known: dict = field(factory=dict)

    def region(self, node, negated: bool) -> Region | None:
        """The keys for which a boolean node is true (false where `negated`), or more; none: not understood."""
        if isinstance(node, (bool, int)):
            return Region("true" if bool(node) != negated else "false", gate=True)
        key = node, negated
        if key not in self._known:
            self._known[key] = self._region(node, negated)
        return self._known[key]

    def _region(self, node, negated: bool) -> Region | None:
        if self.integers.is_row(node):
            text = self.lowered.text(node, torch.bool)
            return Region(f"!{text}" if negated else text, gate=True, nodes=frozenset({node}))
        if node.op != "call_function" or not _is_bool(node):
            return None
        name, args = op_name(node), node.args
        if name in _OPPOSITE:
            return self._comparison(_OPPOSITE[name] if negated else name, *args[:2])
        if not all(not hasattr(arg, "op") or _is_bool(arg) for arg in args):
            return None
        if name in _NOT:
            return self.region(args[0], not negated)
        if name in _AND or name in _OR:
            meet = (name in _AND) != negated
            return self._meet(*args[:2], negated) if meet else self._join(*args[:2], negated)
        if name in _XOR:
            return self._chosen(args[0], (args[1], not negated), (args[1], negated))
        if name == "where":
            return self._chosen(args[0], (args[1], negated), (args[2], negated))
        if name in ALIASES:
            return self.region(args[0], negated)
        return None

    def _meet(self, a, b, negated: bool) -> Region | None:
        first, second = self.region(a, negated), self.region(b, negated)
        if first is None or second is None:
            known = first or second
            return evolve(known, exact=False) if known is not None else None
        if not first.gate and not second.gate and first.count + second.count - 1 > MAX_INTERVALS:
            return None
        return _both(first, second)

    def _join(self, a, b, negated: bool) -> Region | None:
        first, second = self.region(a, negated), self.region(b, negated)
        return _either(first, second) if first is not None and second is not None else None

    def _chosen(self, condition, where_true: tuple, where_false: tuple) -> Region | None:
        """The keys with `condition` in the one region, without it in the other; each is `(node, negated)`."""
        sides = []
        for negated, (node, flipped) in ((False, where_true), (True, where_false)):
            test, region = self.region(condition, negated), self.region(node, flipped)
            if test is None or region is None:
                return None
            sides.append(_both(test, region))
        return _either(*sides)

    def _comparison(self, name: str, a, b) -> Region | None:
        dtype = torch.result_type(*(arg.meta["val"] if hasattr(arg, "op") else arg for arg in (a, b)))
        if dtype.is_floating_point or dtype is torch.bool:
            return None
        if self.integers.is_row(a):
            a, b, name = b, a, _FLIPPED[name]
        if not self.integers.is_row(b) or self.integers.is_row(a):
            return None
        growth = self.integers.growth(a)
        return _solve(growth, name, self.integers.row(b)) if growth is not None else None


def _solve(growth: Growth, name: str, level: Term) -> Region | None:
    """The keys for which `growth NAME level` holds."""
    if growth.magnitude:
        return _solve_magnitude(evolve(growth, magnitude=False), name, level)
    if growth.sign < 0:
        level = level.step("negative", trend=None if level.trend is None else -level.trend)
        growth, name = evolve(growth, sign=1), _FLIPPED[name]
    above = level.step("plus", Term.of(1), trend=level.trend)
    if name in ("ge", "lt"):
        return _half(growth, "from" if name == "ge" else "below", level)
    if name in ("gt", "le"):
        return _half(growth, "from" if name == "gt" else "below", above)
    if name == "eq":
        return _both(_half(growth, "from", level), _half(growth, "below", above))
    return _either(_half(growth, "below", level), _half(growth, "from", above))


def _half(growth: Growth, side: str, level: Term) -> Region:
    threshold = growth.reaches(level)
    region = Region(
        f"mods::{side}({threshold.text})",
        monotone=threshold.trend in (0, 1),
        nodes=threshold.nodes,
        checks=growth.checks,
        sorted=growth.sorted,
    )
    if growth.sorted:
        condition = " & ".join(f"p.{sorted_flag(*which)}" for which in sorted(growth.sorted))
        return evolve(region, text=f"mods::all_if(!({condition}), {region.text})", exact=False, monotone=False)
    return region


def _solve_magnitude(growth: Growth, name: str, level: Term) -> Region | None:
    """`|growth| NAME level`."""
    mirrored = level.step("negative", trend=None if level.trend is None else -level.trend)
    if name in ("lt", "le"):
        return _both(_solve(growth, name, level), _solve(growth, _FLIPPED[name], mirrored))
    if name in ("gt", "ge"):
        return _either(_solve(growth, name, level), _solve(growth, _FLIPPED[name], mirrored))
    return None


def sorted_flag(field_name: str, dim: int) -> str:
    """The name of the parameter that says whether a tensor ascends along a dimension."""
    return f"{field_name}_ascends_{dim}"
