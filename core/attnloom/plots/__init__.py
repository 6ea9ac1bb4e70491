"""Pictures of indices, plans and masks, as matplotlib figures; `attnloom plot` writes them to files.

matplotlib comes with the extra `plot`. Figures are made without pyplot, so no backend and no global state is touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnloom.errors import UnsupportedError

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#555555")
"""Colours that people with any colour vision tell apart (Paul Tol's bright set, and two more)."""


def new_figure(width: float, height: float) -> Any:
    """An empty `matplotlib.figure.Figure` of so many inches. Raises `UnsupportedError` where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            f"drawing needs matplotlib ({error}): pip install matplotlib, or attnloom with its extra: attnloom[plot]"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: str | Path) -> Path:
    """Write `figure` to `path`, in the format of its suffix (png, svg, pdf or what else matplotlib writes). Raises
    `UnsupportedError` for others."""
    path = Path(path)
    known = sorted(figure.canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise UnsupportedError(f"{path.name!r}: a picture's name ends in one of .{', .'.join(known)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def runs(numbers) -> list[tuple[int, int]]:
    """`[(first, last + 1), ...]` of each run of consecutive integers, in order."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] = int(number) + 1
        else:
            found.append([int(number), int(number) + 1])
    return [(low, high) for low, high in found]
