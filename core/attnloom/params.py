"""Parameter names: `"alias.parameter"` keys sorted to the members that own them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from attnloom.errors import ParamError
from attnloom.variant import normalize_name


def assign(members, params: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """`params` by member: `{alias: {parameter: value}}`; a value of none means not given.

    Raises:
        ParamError: a key that names no parameter of the chain; the message has near names.
    """
    assigned: dict[str, dict[str, Any]] = {member.alias: {} for member in members}
    names = {member.alias: {param.name for param in member.variant.params} for member in members}
    for key, value in (params or {}).items():
        alias, _, name = key.partition(".") if isinstance(key, str) else ("", "", "")
        if name not in names.get(alias, ()):
            alias, name = _other_spelling(key, names)
        if value is not None:
            assigned[alias][name] = value
    return assigned


def _other_spelling(key: Any, names: dict[str, set[str]]) -> tuple[str, str]:
    if isinstance(key, str):
        alias, _, name = (normalize_name(part) for part in key.partition("."))
        if name in names.get(alias, ()):
            return alias, name
    raise ParamError(f"unknown parameter {key!r}; {_suggestion(key, names)}")


def _suggestion(key: Any, names: dict[str, set[str]]) -> str:
    known = sorted(f"{alias}.{name}" for alias, owned in names.items() for name in owned)
    if not known:
        return f"{', '.join(names) or 'no variant'} takes no parameters"
    wanted = normalize_name(str(key))
    near = [k for k in known if k.partition(".")[2] == wanted] or difflib.get_close_matches(wanted, known, 3, 0.6)
    if near:
        return f"did you mean {' or '.join(repr(k) for k in near)}?"
    return f"this composition has {', '.join(known)}"
