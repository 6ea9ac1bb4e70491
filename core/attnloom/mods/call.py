"""One node of a traced mod while it is printed: its operands as C++, and how exactly it must be computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen

from attnloom.mods import types
from attnloom.mods.types import is_integer, literal
from attnloom.mods.values import Scalar, View

if TYPE_CHECKING:
    from attnloom.mods.lower import Lowered

FAST = frozenset(("exp", "exp2", "log", "tanh", "sigmoid"))
"""Functions that devices have approximate forms of."""


@frozen(eq=False)
class Call:
    """One node: its operands as C++, its dtype, and how exactly it must be computed.

    Attributes:
        out: dtype of the result.
        exact: a rounding error may become a whole step: functions are computed in double.
        fused: a product may be fused with the sum that it goes into.
        fast: devices may use approximate functions.
    """

    lowered: Lowered
    node: Any
    out: torch.dtype
    exact: bool = False
    fused: bool = False
    fast: bool = False

    def argument(self, at: int | str, default=None):
        """The argument at a place or of a name, as the graph has it."""
        if isinstance(at, str):
            return self.node.kwargs.get(at, default)
        return self.node.args[at] if at < len(self.node.args) else default

    def value(self, at: int) -> Scalar | View:
        """What an argument that is a node stands for."""
        return self.lowered.values[self.node.args[at]]

    def text(self, at: int, dtype: torch.dtype | None = None) -> str:
        """An argument as C++ of `dtype` (none: the result's, but beside half precision a number stays a float)."""
        if dtype is None and self.out in types.STORED and isinstance(self.node.args[at], (int, float)):
            return literal(self.node.args[at], torch.float32)
        return self.lowered.text(self.node.args[at], self.out if dtype is None else dtype)

    def number(self, at: int):
        """The Python number that an argument is; none where it is computed."""
        argument = self.argument(at)
        if isinstance(argument, (bool, int, float)) or argument is None:
            return argument
        return getattr(self.lowered.values[argument], "number", None)

    def common(self, *places: int) -> torch.dtype:
        """The dtype that torch compares or computes several arguments in."""
        values = [self._example(self.node.args[at]) for at in places]
        return torch.result_type(*values) if len(values) == 2 else values[0].dtype

    def rounded(self, text: str) -> str:
        """`text`, a float expression, as the result's dtype."""
        return types.rounded(text, self.out)

    def math(self, name: str, *arguments: str) -> str:
        """A function of `attnloom::mods` as exact as this call needs."""
        space = "mods::exact::" if self.exact else "mods::fast::" if self.fast and name in FAST else "mods::"
        return self.rounded(f"{space}{name}({', '.join(arguments)})")

    def nonnegative(self, text: str) -> bool:
        """Whether the result, an integer, is known to be at least 0."""
        name = self.node.target.overloadpacket.__name__
        if name in ("clamp", "clamp_min"):
            low = self.number(1)
            return low is not None and low >= 0
        if name == "remainder":
            divisor = self.number(1)
            return divisor is not None and divisor > 0 and is_integer(self.out)
        if name in ("floor_divide", "__rshift__", "bitwise_right_shift"):
            divisor = self.number(1)
            return divisor is not None and divisor > 0 and self._is_nonnegative(0)
        if name == "_to_copy":
            return self.out is torch.int64 and self._is_nonnegative(0)
        return False

    def _is_nonnegative(self, at: int) -> bool:
        argument = self.argument(at)
        if isinstance(argument, (bool, int, float)):
            return argument >= 0
        return getattr(self.lowered.values[argument], "nonnegative", False)

    @staticmethod
    def _example(argument):
        return argument if isinstance(argument, (bool, int, float)) else argument.meta["val"]
