# ruff: noqa: F401
"""attnloom: an attention engine for LLM serving, built as a plugin framework.

A lazy façade: `import attnloom` loads no torch, no numpy and no plugin; each name below is imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
    "AttentionSpec": "attnloom.spec",
    "AttentionWrapper": "attnloom.wrapper",
    "Workspace": "attnloom.workspace",
    "attention": "attnloom.ops",
    "merge_states": "attnloom.merge",
    "append_kv": "attnloom.append",
    "flex_attention": "attnloom.flex",
    "storage_format": "attnloom.lookup",
    "explain": "attnloom.explanation",
    "Variant": "attnloom.variant",
    "Param": "attnloom.variant",
    "StaticParam": "attnloom.variant",
    "TensorParam": "attnloom.variant",
    "Level": "attnloom.index",
    "ComposedIndex": "attnloom.index",
    "StorageFormat": "attnloom.index",
    "Tile": "attnloom.tile",
    "TileChoice": "attnloom.tile",
    "TileHeuristic": "attnloom.tile",
    "TileProblem": "attnloom.tile",
    "hookimpl": "attnloom.hookspecs",
    "Setting": "attnloom.settings",
    "AttnloomError": "attnloom.errors",
    "CacheFullError": "attnloom.errors",
    "CompileError": "attnloom.errors",
    "CompositionError": "attnloom.errors",
    "ConfigError": "attnloom.errors",
    "IndexFormatError": "attnloom.errors",
    "ModError": "attnloom.errors",
    "NotPlannedError": "attnloom.errors",
    "PageError": "attnloom.errors",
    "ParamError": "attnloom.errors",
    "PlanError": "attnloom.errors",
    "PluginError": "attnloom.errors",
    "RunError": "attnloom.errors",
    "UnavailableError": "attnloom.errors",
    "UnknownNameError": "attnloom.errors",
    "UnsupportedError": "attnloom.errors",
}

__all__ = [*_HOMES, "__version__", "plugins"]

if TYPE_CHECKING:
    from attnloom import plugins as plugins
    from attnloom.append import append_kv
    from attnloom.errors import (
        AttnloomError,
        CacheFullError,
        CompileError,
        CompositionError,
        ConfigError,
        IndexFormatError,
        ModError,
        NotPlannedError,
        PageError,
        ParamError,
        PlanError,
        PluginError,
        RunError,
        UnavailableError,
        UnknownNameError,
        UnsupportedError,
    )
    from attnloom.explanation import explain
    from attnloom.flex import flex_attention
    from attnloom.hookspecs import hookimpl
    from attnloom.index import ComposedIndex, Level, StorageFormat
    from attnloom.lookup import storage_format
    from attnloom.merge import merge_states
    from attnloom.ops import attention
    from attnloom.settings import Setting
    from attnloom.spec import AttentionSpec
    from attnloom.tile import Tile, TileChoice, TileHeuristic, TileProblem
    from attnloom.variant import Param, StaticParam, TensorParam, Variant
    from attnloom.workspace import Workspace
    from attnloom.wrapper import AttentionWrapper


def __getattr__(name: str):
    if name == "plugins":
        return importlib.import_module("attnloom.plugins")
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'attnloom' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
