"""From a compiler's log to one message: who is at fault, where, and the first thing that was said."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from attrs import evolve, frozen

from attnloom.jit.unit import headers_below
from attnloom.variant import FUNCTORS

CORE = "attnloom"
"""The label of the engine's own headers; errors there are put down to the plugin that led to them, if one did."""

FREE_SPACE = "free some space, run `attnloom cache clear`, or set ATTNLOOM_CACHE_DIR to another disk"
"""What to do where a disk is full."""

_ERROR = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<message>.*)$")
_PLACE = re.compile(r"(?:^|from )(?P<file>[^\s:][^:\n]*?):(?P<line>\d+)(?::(?P<column>\d+))?[:,]?")
_STATIC_ASSERT = re.compile(
    r"static[_ ]assert(?:ion)?(?: failed)?(?: due to requirement '.*?')?:? *(?P<text>.*)$", re.IGNORECASE
)
_CAUSES = (
    (
        re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE),
        f"the disk is full: {FREE_SPACE}",
    ),
    (
        re.compile(
            r"libgomp\.spec|cannot find -l(?:gomp|omp)\b|library -l(?:gomp|omp)\b"
            r"|'?omp\.h'?.*(?:not found|No such file)"
        ),
        "the compiler has no OpenMP runtime. Install it (GCC: libgomp; Clang on Debian/Ubuntu: apt install "
        "libomp-dev), or set CXX to a compiler that has one",
    ),
    (
        re.compile(
            r"Killed signal|signal 9|signal terminated program|internal compiler error: Killed|: Killed$|^Killed$"
            r"|out of memory|virtual memory exhausted|Cannot allocate memory",
            re.MULTILINE,
        ),
        "the compiler was killed, most often for want of memory. Nothing was kept; call again with more memory free",
    ),
    (re.compile(r"internal compiler error"), "the compiler itself crashed: try another with CXX"),
    (
        re.compile(r"undefined reference to|undefined symbol|cannot find -l|ld returned|linker command failed"),
        "the link failed",
    ),
)


@frozen
class Diagnostic:
    """One message of a compiler.

    Attributes:
        owner: label of the plugin whose code is at fault, or none.
        file, line, column: the place to look at (column 0: unknown); file is empty where there is none.
        message: the first message, or the text of the static_assert.
        excerpt: the line of source and a caret under it, or empty.
        raised_in: where the message was raised if that is another place than `file:line`.
    """

    owner: str | None
    file: str
    line: int
    column: int
    message: str
    excerpt: str = ""
    raised_in: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" + (f":{self.column}" if self.column else "") if self.file else ""
        lines = [": ".join(part for part in (place, self.message) if part)]
        if self.excerpt:
            lines.append(self.excerpt)
        if self.raised_in:
            lines.append(f"  (raised in {self.raised_in})")
        return "\n".join(lines)


def diagnose(log: str, owners: Sequence[tuple[str, str]]) -> Diagnostic:
    """The message of `log` that an author should read first.

    A machine's own trouble (disk, memory, OpenMP) comes first; then the first error if it is in a plugin's file, in the
    generated text or is a static_assert; else the first static_assert, the first error in a plugin's file, the first.
    """
    lines = log.splitlines()
    errors = [(number, match) for number, line in enumerate(lines) if (match := _ERROR.match(line))]
    cause = next((text for pattern, text in _CAUSES if pattern.search(log)), None)
    if cause and not (errors and cause == "the link failed") and not _only_quotes(errors, lines):
        return Diagnostic(None, "", 0, 0, cause, excerpt=_first_matching(lines))
    if not errors:
        return Diagnostic(None, "", 0, 0, "the compiler failed without an error message", excerpt=_tail(lines))
    chosen = _choose(errors, owners)
    return _describe(chosen, errors, lines, owners)


def owner_of(file: str, owners: Sequence[tuple[str, str]]) -> str | None:
    """The label of the longest prefix of `owners` that holds `file`."""
    path = os.path.realpath(file)
    best, label = -1, None
    for prefix, name in owners:
        folder = os.path.realpath(prefix)
        if (path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)) and len(folder) > best:
            best, label = len(folder), name
    return label


def _is_plugin(label: str | None) -> bool:
    return label is not None and label != CORE


def _choose(errors, owners):
    def in_plugin(error) -> bool:
        return _is_plugin(owner_of(error[1]["file"], owners))

    def is_assert(error) -> bool:
        return _STATIC_ASSERT.match(error[1]["message"]) is not None

    def in_generated_text(error) -> bool:
        return os.sep not in error[1]["file"]

    first = errors[0]
    if in_plugin(first) or is_assert(first) or in_generated_text(first):
        return first
    for wanted in (is_assert, in_plugin):
        for error in errors:
            if wanted(error):
                return error
    return first


def _describe(chosen, errors, lines, owners) -> Diagnostic:
    number, match = chosen
    file, line, column = match["file"], int(match["line"]), int(match["column"] or 0)
    message = "error: " + match["message"]
    if (asserted := _STATIC_ASSERT.match(match["message"])) and asserted["text"].strip():
        message = asserted["text"].strip().strip('"')
    found = Diagnostic(owner_of(file, owners), file, line, column, message, excerpt=_excerpt(lines, number))
    if _is_plugin(found.owner):
        return found
    for place in _trail(number, errors, lines):
        owner = owner_of(place["file"], owners)
        if _is_plugin(owner):
            at = int(place["line"]), int(place["column"] or 0)
            excerpt = _quote(place["file"], *at)
            return Diagnostic(owner, place["file"], *at, message, excerpt=excerpt, raised_in=f"{file}:{line}")
    return _named(found, owners)


def _named(found: Diagnostic, owners: Sequence[tuple[str, str]]) -> Diagnostic:
    """An error outside the plugins: put down to the plugin whose label it spells out, and to the functor or struct that
    it names, as the engine's static_asserts and generated checks do."""
    told = f"{found.message}\n{found.excerpt}"
    mentioned = [(prefix, label) for prefix, label in owners if _is_plugin(label) and label in told]
    if not mentioned:
        return evolve(found, owner=None)
    prefix, label = max(mentioned, key=lambda owner: len(owner[1]))
    place = _declaration(prefix, re.findall(r"[A-Za-z_]\w*", found.message.replace(label, " ")))
    if place is None:
        return evolve(found, owner=label)
    at = f"{found.file}:{found.line}"
    return evolve(found, owner=label, file=place[0], line=place[1], column=0, excerpt=_quote(*place, 0), raised_in=at)


def _declaration(prefix: str, words: Sequence[str]) -> tuple[str, int] | None:
    """Where the headers below `prefix` declare the first functor among `words`, else the first struct."""
    functors = [rf"\b{word}\s*\(" for word in words if word in FUNCTORS]
    structs = [rf"\b(?:struct|class)\s+{word}\b" for word in words]
    files = [prefix] if os.path.isfile(prefix) else headers_below(prefix)
    for pattern in (*functors, *structs):
        for file in files:
            with open(file, encoding="utf-8", errors="replace") as source:
                for number, line in enumerate(source, 1):
                    if re.search(pattern, line.partition("//")[0]):
                        return file, number
    return None


def _trail(number: int, errors, lines):
    """The places that the lines about one error name: before it (GCC) and after it (Clang), up to its neighbours."""
    numbers = [index for index, _ in errors]
    position = numbers.index(number)
    begin = numbers[position - 1] + 1 if position else 0
    end = numbers[position + 1] if position + 1 < len(numbers) else len(lines)
    for line in (*lines[number + 1 : end], *reversed(lines[begin:number])):
        if line.startswith((" ", "\t")) and "from " not in line:
            continue
        if "In file included from" in line or line.lstrip().startswith("from "):
            continue  # says who included, not who is at fault
        if place := _PLACE.search(line):
            yield place


def _excerpt(lines: list[str], number: int) -> str:
    """The line of source and the carets that the compiler put under its message, or nothing."""
    quoted = [line.rstrip() for line in lines[number + 1 : number + 3]]
    numbered = all(re.match(r"\s*\d* \|", line) for line in quoted)  # GCC, Clang >= 16
    underlined = len(quoted) == 2 and re.fullmatch(r"[ \t~^]*\^[ ~^]*", quoted[1])
    return "\n".join(quoted) if quoted and (numbered or underlined) else ""


def _quote(file: str, line: int, column: int) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            text = source.read().splitlines()[line - 1]
    except (OSError, IndexError):
        return ""
    quoted = f"{line:5} | {text}"
    return quoted + (f"\n      | {' ' * (column - 1)}^" if column else "")


def _only_quotes(errors, lines) -> bool:
    """Whether what looks like the machine's trouble is only quoted by an ordinary error."""
    ordinary = bool(errors) and not any("internal compiler error" in line for line in lines)
    return ordinary and not any(
        re.search(r"No space left|Disk quota|Killed|memory|omp\.h", match[0]) for _, match in errors
    )


def _first_matching(lines: list[str]) -> str:
    for pattern, _ in _CAUSES:
        for line in lines:
            if pattern.search(line):
                return f"  {line.strip()[:300]}"
    return ""


def _tail(lines: list[str]) -> str:
    return "\n".join(f"  {line[:300]}" for line in lines[-5:])
