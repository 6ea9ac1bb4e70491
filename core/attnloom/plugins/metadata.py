"""What the metadata of one distribution says, read once and without the standard parser, which costs a listing most."""

from __future__ import annotations

import re

from attrs import frozen
from importlib_metadata import Distribution

from attnloom.plugins.naming import canonicalize_name

_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)")
_PLAIN = re.compile(r"\d+(?:\.\d+)*\Z")
_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)\Z")


@frozen
class Facts:
    """Name, version and requirements of a distribution, as its `METADATA` spells them."""

    name: str
    version: str
    requires: tuple[str, ...]


def facts_of(distribution: Distribution) -> Facts:
    """The facts of one distribution. Raises `ValueError` where it has no name or no version."""
    text = distribution.read_text("METADATA")
    if text is None:
        fields = {"name": [distribution.metadata["Name"]], "version": [distribution.version]}
        requires = tuple(distribution.requires or ())
    else:
        fields = headers(text)
        requires = tuple(fields.get("requires-dist", ()))
    for field in ("name", "version"):
        if not (fields.get(field) or [""])[0]:
            raise ValueError(f"it has no {field}")
    return Facts(fields["name"][0], fields["version"][0], requires)


def headers(text: str) -> dict[str, list[str]]:
    """The header fields of a `METADATA` file, by lower-case name; what it describes at length comes after them."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            break
        if line[0] in " \t" and values:
            values[-1] += f" {line.strip()}"
            continue
        name, _, value = line.partition(":")
        values = found.setdefault(name.strip().lower(), [])
        values.append(value.strip())
    return found


def requirement_name(text: str) -> str:
    """The canonical name of what a requirement is on; empty where it has none."""
    match = _NAME.match(text)
    return canonicalize_name(match[1]) if match else ""


def refused(text: str, version: str) -> str | None:
    """The versions that the requirement `text` accepts (`">=0.1,<1"`), where `version` is not one and it applies here.

    Raises `ValueError` where it cannot be read.
    """
    clauses = text[_NAME.match(text).end() :].strip()
    simple = [_CLAUSE.match(part.strip()) for part in clauses.split(",")] if clauses else []
    if all(simple) and _PLAIN.match(version):
        accepted = all(compare(version, match[1], match[2]) for match in simple)
        return None if accepted else clauses.replace(" ", "")
    # The usual form was compared here because importing packaging takes longer than reading thirty plugins.
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    return None if requirement.specifier.contains(version, prereleases=True) else str(requirement.specifier)


def compare(version: str, operator: str, bound: str) -> bool:
    """Whether `version operator bound` holds of two plain release numbers, as PEP 440 orders them."""
    left, right = ([int(part) for part in text.split(".")] for text in (version, bound))
    length = max(len(left), len(right))
    left, right = (parts + [0] * (length - len(parts)) for parts in (left, right))
    equal, less = left == right, left < right
    holds = {">=": not less, "<=": equal or less, "==": equal, "!=": not equal, "<": less, ">": not (equal or less)}
    return holds[operator]
