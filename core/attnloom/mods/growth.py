"""How integer values of a mask move with the key's position: what `ranges` turns comparisons into intervals with.

A value *grows* if it is a function of `kv_idx` that never decreases, or the negative of one, whose thresholds can be
written down: the least `kv_idx` at which it reaches `S`. Everything is computed in 64 bits; that nothing wraps in the
32 bits of the mask itself is proved from bounds, which positions keep by contract and parameters by a check.
"""

from __future__ import annotations

import torch
from attrs import evolve, field, frozen

from attnloom.mods.bounds import ALIASES, bounds_of
from attnloom.mods.limits import LIMIT
from attnloom.mods.lower import Lowered, op_name
from attnloom.mods.types import is_integer
from attnloom.mods.values import Scalar, View

_FOLDED = {
    "negative": lambda a: -a,
    "plus": lambda a, b: a + b,
    "minus": lambda a, b: a - b,
    "times": lambda a, b: a * b,
    "past_times": lambda a, b: (a - 1) * b + 1,
    "ceil_quotient": lambda a, b: -(-a // b),
}
_KEY = frozenset({"kv_idx", "kv_index", "score"})
_QUERY = frozenset({"q_idx", "q_index"})


@frozen
class Term:
    """A 64-bit C++ expression that is the same for all keys of a row.

    Attributes:
        trend: as the query's position grows: 0 constant, 1 never falling, -1 never rising, none unknown.
        number: what it is, where that is known.
        nodes: graph nodes whose statements the text needs.
    """

    text: str
    trend: int | None = 0
    nodes: frozenset = frozenset()
    number: int | None = None

    @classmethod
    def of(cls, number: int) -> Term:
        """A number."""
        return cls(f"int64_t{{{number}}}", number=number)

    def step(self, name: str, *others: Term, trend: int | None) -> Term:
        """`mods::name(self, others...)`."""
        numbers = [term.number for term in (self, *others)]
        if name in _FOLDED and None not in numbers:
            return Term.of(_FOLDED[name](*numbers))
        nodes = self.nodes.union(*(other.nodes for other in others))
        return Term(f"mods::{name}({', '.join(term.text for term in (self, *others))})", trend, nodes)


@frozen
class Growth:
    """`sign * g(kv_idx)`, where g never decreases.

    Attributes:
        steps: the functions that make g of `kv_idx`, the first applied first; each turns the term S into the least
            argument at which its value reaches S.
        bounds: least and greatest value of `sign * g`.
        checks: what must hold of parameters: `("small" | "positive", parameter)`.
        sorted: tensors, as `(parameter, dimension)`, that are taken to ascend; where they do not, nothing is known.
        magnitude: it is the absolute value of this.
    """

    sign: int = 1
    steps: tuple = ()
    bounds: tuple[int, int] = (-LIMIT, LIMIT)
    checks: frozenset = frozenset()
    sorted: frozenset = frozenset()
    magnitude: bool = False

    def reaches(self, level: Term) -> Term:
        """The least `kv_idx` at which g is at least `level`."""
        for step in reversed(self.steps):
            level = step(level)
        return level

    def then(self, step, bounds, checks=frozenset()) -> Growth:
        """g followed by another function that never decreases."""
        return evolve(self, steps=(*self.steps, step), bounds=bounds, checks=self.checks | checks)

    def negated(self) -> Growth:
        """The negative of the value."""
        return evolve(self, sign=-self.sign, bounds=(-self.bounds[1], -self.bounds[0]))


@frozen(eq=False)
class Integers:
    """What is known of the integer nodes of one lowered mask."""

    lowered: Lowered
    _growths: dict = field(factory=dict)

    def depends(self, node) -> frozenset[str]:
        """The arguments of the mod that a node depends on, and `p.name` of the parameters' tensors."""
        return _depends(self.lowered, node)

    def is_row(self, node) -> bool:
        """Whether it is the same for all keys of a row."""
        return not hasattr(node, "op") or not self.depends(node) & _KEY

    def row(self, node) -> Term:
        """A row's value, an integer node or number, as a term."""
        if isinstance(node, int):
            return Term.of(int(node))
        text = self.lowered.text(node, torch.int64)
        nodes = frozenset() if not hasattr(node, "op") else frozenset({node})
        return Term(text, self.trend(node), nodes)

    def trend(self, node) -> int | None:
        """How a row's value moves as the query's position grows."""
        if not hasattr(node, "op") or not self.depends(node) & _QUERY:
            return 0
        if node.op == "placeholder":
            return 1
        name, args = op_name(node), node.args
        if self.bounds(node)[0] is None:
            return None
        if name in ("add", "sub") and not node.kwargs:
            return _sum(self.trend(args[0]), self.trend(args[1]), 1 if name == "add" else -1)
        if name == "neg":
            return _sum(0, self.trend(args[0]), -1)
        if name in ("mul", "floor_divide") and isinstance(args[1], int) and args[1] > 0:
            return self.trend(args[0])
        if name in ("__rshift__", *ALIASES) and all(isinstance(arg, int) for arg in args[1:]):
            return self.trend(args[0])
        if name in ("minimum", "maximum", "clamp_min", "clamp_max", "clamp"):
            trends = {self.trend(arg) for arg in args} - {0}
            return trends.pop() if len(trends) == 1 else None
        return None

    def bounds(self, node) -> tuple:
        """`(least, greatest, checks)` of an integer; `(None, None, ...)` where it may wrap."""
        if isinstance(node, (bool, int)):
            return int(node), int(node), frozenset()
        return bounds_of(self, node)

    def growth(self, node) -> Growth | None:
        """How an integer node that differs from key to key grows, if it does."""
        if not hasattr(node, "op"):
            return None
        if node not in self._growths:
            self._growths[node] = _growth(self, node)
        return self._growths[node]


def _depends(lowered: Lowered, node) -> frozenset[str]:
    memo = lowered.dependencies
    if node not in memo:
        if node.op == "placeholder":
            memo[node] = frozenset({lowered.arguments[node]})
        else:
            memo[node] = frozenset().union(*(_depends(lowered, read) for read in node.all_input_nodes))
    return memo[node]


def _sum(a: int | None, b: int | None, sign: int) -> int | None:
    if a is None or b is None:
        return None
    b *= sign
    return a or b if a == 0 or b == 0 or a == b else None


def _growth(integers: Integers, node) -> Growth | None:
    if node.op == "placeholder":
        return Growth() if integers.lowered.arguments[node] == "kv_idx" else None
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not is_integer(value.dtype) or node.op != "call_function":
        return None
    view = integers.lowered.views.get(node)
    if view is not None:
        return _lookup(integers, node, view)
    rule = _GROWTHS.get(op_name(node))
    found = rule(integers, node) if rule is not None else None
    if found is None:
        return None
    limits = torch.iinfo(value.dtype)
    return found if limits.min <= found.bounds[0] <= found.bounds[1] <= limits.max else None


def _moving(integers: Integers, node) -> tuple[Growth, object, bool] | None:
    """`(growth, row's side, whether the row's side comes first)` of a binary operation."""
    a, b = node.args[:2]
    for key, row, swapped in ((a, b, False), (b, a, True)):
        if integers.is_row(row) and not integers.is_row(key):
            growth = integers.growth(key)
            return (growth, row, swapped) if growth is not None and not growth.magnitude else None
    return None


def _shifted(integers: Integers, growth: Growth, row, sign: int) -> Growth | None:
    """`growth + sign * row`."""
    low, high, checks = integers.bounds(row)
    if low is None:
        return None
    term = integers.row(row)
    low, high = (low, high) if sign > 0 else (-high, -low)
    inner = sign * growth.sign  # what is added to g
    name = "minus" if inner > 0 else "plus"
    bounds = growth.bounds[0] + low, growth.bounds[1] + high
    return growth.then(lambda s: s.step(name, term, trend=_sum(s.trend, term.trend, -inner)), bounds, checks)


def _add(integers: Integers, node) -> Growth | None:
    found = None if node.kwargs else _moving(integers, node)
    return found and _shifted(integers, found[0], found[1], 1)


def _sub(integers: Integers, node) -> Growth | None:
    found = None if node.kwargs else _moving(integers, node)
    if found is None:
        return None
    growth, row, swapped = found
    if op_name(node) == "rsub":
        swapped = not swapped
    return _shifted(integers, growth.negated(), row, 1) if swapped else _shifted(integers, growth, row, -1)


def _neg(integers: Integers, node) -> Growth | None:
    growth = integers.growth(node.args[0])
    return growth.negated() if growth is not None and not growth.magnitude else None


def _mul(integers: Integers, node) -> Growth | None:
    found = _moving(integers, node)
    if found is None or not isinstance(found[1], int) or isinstance(found[1], bool) or found[1] == 0:
        return None
    growth, factor, _ = found
    growth = growth if factor > 0 else growth.negated()
    size = Term.of(abs(factor))
    bounds = tuple(bound * abs(factor) for bound in growth.bounds)
    return growth.then(lambda s: s.step("ceil_quotient", size, trend=s.trend), bounds)


def _floor_divide(integers: Integers, node) -> Growth | None:
    if node.kwargs.get("rounding_mode", "floor") != "floor":
        return None
    growth, divisor = integers.growth(node.args[0]), node.args[1]
    if op_name(node) in ("__rshift__", "bitwise_right_shift"):
        if not isinstance(divisor, int) or not 0 <= divisor < 31:
            return None
        divisor = 1 << divisor
    checks: frozenset = frozenset()
    if growth is None or growth.magnitude or not integers.is_row(divisor):
        return None
    if not isinstance(divisor, int):
        name = _parameter(integers.lowered, divisor)
        if name is None:
            return None
        checks = frozenset({("positive", name)})
    elif divisor <= 0:
        return None
    size = integers.row(divisor)
    # -g // d is -ceil(g / d).
    name = "times" if growth.sign > 0 else "past_times"
    low, high = growth.bounds
    bounds = (min(low, 0), max(high, 0)) if checks else (low // divisor, high // divisor)
    return growth.then(lambda s: s.step(name, size, trend=s.trend), bounds, checks)


def _parameter(lowered: Lowered, node) -> str | None:
    """The name of the scalar parameter or 0-d tensor that a node is."""
    if node.op == "placeholder" and lowered.arguments[node] in lowered.params:
        return lowered.arguments[node]
    if node.op == "get_attr" and node in lowered.values and not isinstance(lowered.values[node], View):
        return lowered.values[node].text[2:-2]
    return None


def _extremum(integers: Integers, node) -> Growth | None:
    name = op_name(node)
    if name == "clamp":
        growth = integers.growth(node.args[0])
        limits = [*node.args[1:], *(node.kwargs.get(side) for side in ("min", "max"))]
        limits = [*limits[:2]] if len(node.args) > 1 else limits
        for limit, largest in zip(limits, (True, False), strict=False):
            if limit is not None and growth is not None:
                growth = _limited(integers, growth, limit, largest) if integers.is_row(limit) else None
        return growth
    found = _moving(integers, node)
    return found and _limited(integers, found[0], found[1], name in ("maximum", "clamp_min"))


def _limited(integers: Integers, growth: Growth, row, largest: bool) -> Growth | None:
    """The larger, or the smaller, of `growth` and a row's value."""
    low, high, checks = integers.bounds(row)
    if low is None or growth.magnitude:
        return None
    take = max if largest else min
    bounds = take(growth.bounds[0], low), take(growth.bounds[1], high)
    limit = integers.row(row)
    if growth.sign < 0:
        limit = limit.step("negative", trend=_sum(0, limit.trend, -1))
    name = "raised" if largest == (growth.sign > 0) else "capped"
    return growth.then(lambda s: s.step(name, limit, trend=0 if s.trend == limit.trend == 0 else None), bounds, checks)


def _abs(integers: Integers, node) -> Growth | None:
    growth = integers.growth(node.args[0])
    if growth is None or growth.magnitude:
        return None
    low, high = growth.bounds
    return evolve(growth, magnitude=True, bounds=(0, max(abs(low), abs(high))))


def _same(integers: Integers, node) -> Growth | None:
    source = node.args[0]
    return integers.growth(source) if hasattr(source, "op") and is_integer(source.meta["val"].dtype) else None


def _lookup(integers: Integers, node, view: View) -> Growth | None:
    """An element of a tensor, along a dimension indexed by `kv_idx` itself; the tensor is taken to ascend there."""
    along = [dim for dim, index in enumerate(view.indices) if index.text == "kv_idx"]
    lowered = integers.lowered
    reads = [read for read in lowered.statements[node].reads if read.meta["val"].dim() == 0]
    others = frozenset(read for read in reads if lowered.arguments.get(read) != "kv_idx")
    if len(along) != 1 or not all(integers.is_row(read) for read in others):
        return None
    dim = along[0]
    found = Scalar("at", torch.int64, nonnegative=True)
    placed = View(view.field, view.dtype, tuple(found if d == dim else i for d, i in enumerate(view.indices)), ())
    reader = f"[&](int64_t at) {{ return int64_t{{{placed.load()}}}; }}"
    size = f"p.{view.field}.shape[{dim}]"

    def step(s: Term) -> Term:
        return Term(f"mods::first_reaching({size}, {s.text}, {reader})", None, s.nodes | others)

    limits = torch.iinfo(view.dtype)
    bounds = max(limits.min, -LIMIT), min(limits.max, LIMIT)
    checks = frozenset({("small", view.field)} if limits.max > LIMIT else ())
    return Growth(1, (step,), bounds, checks, frozenset({(view.field, dim)}))


_GROWTHS = {
    "add": _add,
    "sub": _sub,
    "rsub": _sub,
    "neg": _neg,
    "mul": _mul,
    **dict.fromkeys(("floor_divide", "div", "__rshift__", "bitwise_right_shift"), _floor_divide),
    **dict.fromkeys(("minimum", "maximum", "clamp", "clamp_min", "clamp_max"), _extremum),
    "abs": _abs,
    **dict.fromkeys(ALIASES, _same),
}
