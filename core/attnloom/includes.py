"""What a variant's header may include: its own package's headers, attnloom's and the system's.

A plugin's headers are read for the cache key folder by folder; one that reaches outside of its own would be compiled
from text that no key holds, and from code whose owner nobody named.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnloom.errors import CompositionError
from attnloom.jit.unit import HEADER_SUFFIXES

_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_SKIP = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)"""
    r"""|(?P<raw>R"(?P<mark>[^ ()\\\t\n]{0,16})\(.*?\)(?P=mark)")"""
    r"""|(?P<literal>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')""",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*(?:\#|%:)[ \t]*(include_next|include|import|embed)\b[ \t]*(.*)$", re.MULTILINE)
_HEADER_NAME = re.compile(r"\"([^\"\n]+)\"|<([^>\n]+)>")


def check_includes(label: str, root: Path, header: str, others: Sequence[tuple[str, Path]] = ()) -> None:
    """Refuse a header that includes what is neither its package's, nor attnloom's, nor the system's.

    Args:
        label: who answers for the header.
        root: the folder from which `header` is included.
        others: `(label, folder)` of each other plugin in the same kernel, whose folders are searched too.

    Raises:
        CompositionError: naming the header, the line and what is included there.
    """
    seen: set[str] = set()
    pending = [header]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for line, included, quoted in includes_of(str(root / name)):
            where = f"{label}: {root / name}:{line} includes {included}"
            if problem := refusal(root, name, included, quoted, others):
                raise CompositionError(f"{where}: {problem}")
            if quoted and not included.startswith("attnloom/"):
                pending.append(own(root, name, included))


def refusal(root: Path, includer: str, included: str, quoted: bool, others: Sequence[tuple[str, Path]]) -> str | None:
    """Why one include is not allowed; none if it is."""
    if not included:
        return "write the name of a file there, in quotes or angle brackets"
    if os.path.isabs(included) or "\\" in included or re.match(r"[A-Za-z]:", included):
        return "an absolute path is of this machine alone; include headers of your own package by relative names"
    if ".." in included.split("/"):
        return "a header may not leave its package; move what it needs into it"
    if included.startswith("attnloom/"):
        return None
    if quoted:
        if own(root, includer, included) is None:
            return f"no such file in {root}; system headers are written in <>, other plugins' are not for including"
        if not included.endswith(HEADER_SUFFIXES):
            return f"only {', '.join(HEADER_SUFFIXES)} are part of the cache key; rename it"
        return None
    for label, folder in others:
        if (folder / included).exists() and not (root / included).exists():
            return f"that is a header of {label}; a plugin includes its own headers and attnloom's"
    return None


def own(root: Path, includer: str, included: str) -> str | None:
    """The path below `root` that a quoted include means; none if there is no such file."""
    for base in (os.path.dirname(includer), ""):
        name = os.path.normpath(os.path.join(base, included))
        if (root / name).is_file():
            return name
    return None


@functools.lru_cache(maxsize=512)
def _parsed(path: str, _stamp: tuple) -> tuple[tuple[int, str, bool], ...]:
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    return tuple(parse(text))


def includes_of(path: str) -> tuple[tuple[int, str, bool], ...]:
    """`(line, name, in quotes)` of each include in a file; the name is empty where it is no plain file name."""
    status = os.stat(path)
    return _parsed(path, (status.st_mtime_ns, status.st_size))


def parse(text: str) -> Iterator[tuple[int, str, bool]]:
    """The includes in the text of a header, as `includes_of` gives them."""
    # Spliced lines are joined but keep their newlines behind them, so that later lines keep their numbers.
    text = re.sub(
        r"(?:[^\n]*\\[ \t]*\r?\n)+[^\n]*",
        lambda match: _SPLICE.sub("", match[0]) + "\n" * len(_SPLICE.findall(match[0])),
        text,
    )
    text = _SKIP.sub(lambda match: match["literal"] or " " + "\n" * match[0].count("\n"), text)
    for match in _DIRECTIVE.finditer(text):
        line = text.count("\n", 0, match.start(1)) + 1
        name = _HEADER_NAME.match(match[2].strip())
        yield line, (name[1] or name[2]) if name else "", bool(name and name[1])
