"""Plugins: found by metadata, loaded when first needed, configured by file and environment.

`attnloom.plugins()` lists those that are installed.
"""

from __future__ import annotations

import sys
import types

from attnloom.plugins.configuration import Config, Stack
from attnloom.plugins.pluginset import PluginSet
from attnloom.plugins.record import KINDS, PluginRecord, State

__all__ = ["KINDS", "Config", "PluginRecord", "PluginSet", "Stack", "State"]


class _CallablePackage(types.ModuleType):
    def __call__(self) -> tuple[PluginRecord, ...]:
        """The installed plugins, the core's own first, with their states. Imports none of them."""
        return self.PluginSet.default().records()


sys.modules[__name__].__class__ = _CallablePackage
