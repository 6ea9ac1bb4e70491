"""What an inferred range takes for granted of parameters, looked at whenever they change."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnloom.errors import ParamError
from attnloom.mods.limits import LIMIT


def ascends(field: str, dim: int, _spec, params: dict[str, Any]) -> bool:
    """Whether the tensor parameter `field` never falls along dimension `dim`."""
    values = params[field].numpy()
    values = values.astype(np.int64) if values.dtype.kind == "u" else values
    return bool((np.diff(values, axis=dim) >= 0).all())


def check(variant: str, wanted: tuple[tuple[str, str], ...], _spec, params: dict[str, Any]) -> None:
    """Raise `ParamError` for a parameter with which the mask's 32 bit arithmetic could wrap, or divide by nothing."""
    for kind, name in wanted:
        value = params[name]
        values = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        if kind == "small" and values.size and max(abs(int(values.min())), abs(int(values.max()))) > LIMIT:
            found = int(values.max()) if int(values.max()) > LIMIT else int(values.min())
            raise ParamError(
                f"parameter '{variant}.{name}' is {found}; positions are added to it, so it must lie within +-{LIMIT} "
                "for 32 bits not to overflow"
            )
        if kind == "positive" and values.size and int(values.min()) <= 0:
            raise ParamError(
                f"parameter '{variant}.{name}' is {int(values.min())}; the mask divides by it: give 1 or more"
            )
