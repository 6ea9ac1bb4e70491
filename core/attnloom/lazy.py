"""Packages whose names load their module when first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def exports(namespace: dict, homes: Mapping[str, str]) -> tuple[Callable, Callable]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        namespace: the package's `globals()`; what is loaded is kept there.
        homes: each public name and the submodule that defines it.

    Returns:
        `(__getattr__, __dir__)`; the first raises `AttributeError` for names that `homes` lacks.
    """
    package = namespace["__name__"]

    def load(name: str):
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home}"), name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*namespace, *homes})

    return load, names
