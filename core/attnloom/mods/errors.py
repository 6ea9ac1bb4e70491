"""What cannot be lowered, said with the line it stands on."""

from __future__ import annotations

import linecache
from types import FrameType

from attrs import frozen

from attnloom.errors import ModError


class Refusal(Exception):  # noqa: N818
    """Why one operation cannot be lowered; the lowering adds where it stands.

    Args:
        what: what the operation does, to follow "it".
        allowed: what would be allowed.
        advice: what to do instead.
    """

    def __init__(self, what: str, allowed: str, advice: str):
        super().__init__(what)
        self.what, self.allowed, self.advice = what, allowed, advice


@frozen
class Line:
    """A line of the user's code."""

    file: str
    number: int
    function: str

    @classmethod
    def of(cls, frame: FrameType) -> Line:
        """The line that a frame is at."""
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

    @property
    def text(self) -> str:
        """What the line says, or nothing where the source is not to be had."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        shown = f": `{self.text}`" if self.text else ""
        return f"{self.file}, line {self.number}, in {self.function}{shown}"


def refuse(kind: str, line: Line | None, refusal: Refusal) -> ModError:
    """The error to raise for a refusal."""
    where = f" at {line}" if line is not None else ""
    return ModError(f"{kind}{where}: it {refusal.what}. Allowed: {refusal.allowed}. What to do: {refusal.advice}")
