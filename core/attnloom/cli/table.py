"""Plain tables for terminals, made without a library: importing one takes longer than reading thirty plugins."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

_CODES = {"bold": "1", "faint": "2", "red": "31", "green": "32", "yellow": "33"}


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    *,
    styles: Mapping[str, str] | None = None,
    styled_column: int = -1,
) -> str:
    """Rows in aligned columns below their titles.

    Args:
        notes: a line below each row, or an empty string.
        styles: cell text -> one of bold, faint, red, green, yellow, for the cells of `styled_column`; used on
            terminals only.
    """
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    coloured = is_coloured()
    lines = [
        "  ".join(style(title.ljust(width), "bold", coloured) for title, width in zip(titles, widths, strict=True))
    ]
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if styles and styled_column >= 0:
            how = styles.get(row[styled_column], "")
            cells[styled_column] = style(cells[styled_column], how, coloured)
        lines.append("  ".join(cells).rstrip())
        if number < len(notes) and notes[number]:
            lines.append(f"    {notes[number]}")
    return "\n".join(line.rstrip() for line in lines)


def style(text: str, how: str, coloured: bool) -> str:
    """`text` in a colour or weight, for terminals that show them."""
    return f"\x1b[{_CODES[how]}m{text}\x1b[0m" if coloured and how else text


def is_coloured() -> bool:
    """Whether standard output is a terminal that colours are wanted on."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
