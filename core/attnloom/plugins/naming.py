"""Canonical names and near misses."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attnloom.names import NAME, normalize_name

__all__ = ["NAME", "canonicalize_name", "did_you_mean", "near", "normalize_name", "plugin_key"]


def canonicalize_name(name: str) -> str:
    """The canonical spelling of a distribution's name (PEP 503): `Attnloom.Soft_Cap` is `attnloom-soft-cap`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def plugin_key(name: str) -> str:
    """The canonical spelling of a plugin or distribution name that a user wrote."""
    return normalize_name(name).replace(".", "_")


def near(name: str, known: Iterable[str]) -> list[str]:
    """At most three of `known` that look like `name`, best first."""
    import difflib

    known = sorted(set(known))
    inside = [other for other in known if name and (name in other or other in name)]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return list(dict.fromkeys([*close, *inside]))[:3]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'rope'?`, or nothing where no known name is near."""
    matches = near(name, known)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""
