"""How plugins, variants, storage formats, heuristics, stacks and parameters are named."""

from __future__ import annotations

import re

NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
"""What every name matches."""


def normalize_name(name: str) -> str:
    """The canonical spelling of a name that a user wrote: lower case, `_` for `-`."""
    return name.strip().lower().replace("-", "_")
