"""The objects that `"module:attr"` strings name."""

from __future__ import annotations

import importlib
from typing import Any


def resolve(path: str) -> Any:
    """The object that a `"module:attr"` string names; its module is imported now.

    Raises:
        ImportError: there is no such module. Whatever else its import raises comes through as it is.
        AttributeError: the module has no such attribute.
    """
    module, _, attr = path.partition(":")
    return getattr(importlib.import_module(module), attr)


def resolve_code(code: Any) -> Any:
    """As `resolve`, for a field that may hold the object itself in place of its name."""
    return resolve(code) if isinstance(code, str) else code
