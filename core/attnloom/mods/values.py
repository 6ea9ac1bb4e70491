"""What a node stands for while a mod is lowered: a number, or a tensor of which some dimensions are indexed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from attrs import frozen

from attnloom.mods.types import cast


@frozen(eq=False)
class Scalar:
    """A value of one element.

    Attributes:
        text: the C++ expression that reads it, of `dtype`.
        number: the Python number it is, where it is a literal.
        nonnegative: whether it is known to be at least 0.
        as_float: a C++ expression of it as float32, where there is a cheaper one than a conversion.
    """

    text: str
    dtype: torch.dtype
    number: bool | int | float | None = None
    nonnegative: bool = False
    as_float: str | None = None


@frozen(eq=False)
class View:
    """A tensor parameter some of whose dimensions have been indexed.

    Attributes:
        field: name of the parameter.
        indices: an index for each dimension of the parameter; none: still free.
        free: the parameter's dimensions that are free, in the order of the view's own.
    """

    field: str
    dtype: torch.dtype
    indices: tuple[Scalar | None, ...]
    free: tuple[int, ...]

    def at(self, dim: int, index: Scalar) -> View:
        """The view with its dimension `dim` indexed."""
        return self.at_all({dim: index})

    def at_all(self, chosen: dict[int, Scalar]) -> View:
        """The view with several of its dimensions indexed."""
        indices = list(self.indices)
        for dim, index in chosen.items():
            indices[self.free[dim]] = index
        free = tuple(source for dim, source in enumerate(self.free) if dim not in chosen)
        return View(self.field, self.dtype, tuple(indices), free)

    def moved(self, order: Iterable[int]) -> View:
        """The view with its dimensions in another order."""
        return View(self.field, self.dtype, self.indices, tuple(self.free[dim] for dim in order))

    def load(self) -> str:
        """The C++ expression that reads the element; every dimension is indexed."""
        indices = [
            cast(index.text, index.dtype, torch.int64)
            if index.nonnegative
            else f"mods::wrap({index.text}, p.{self.field}.shape[{dim}])"
            for dim, index in enumerate(self.indices)
        ]
        return f"p.{self.field}({', '.join(indices)})"
