"""The core's own choice of tiles."""

from __future__ import annotations

from attnloom.tile import Tile, TileChoice, TileProblem

_ROWS = 4
"""Rows that a host kernel multiplies at once."""


def choose(problem: TileProblem) -> TileChoice:
    """A short tile for decode, which holds one query token's heads, and a tall one that shares keys among many rows."""
    rows = -(-min(problem.group, 64) // _ROWS) * _ROWS
    short = Tile(rows, 64, problem.family)
    why = [f"short: the {problem.group} query heads of a kv head, in steps of {_ROWS} rows, so that decode pads little"]
    if problem.max_qo_len is not None and problem.max_qo_len * problem.group <= rows:
        return TileChoice(short=short, why=[*why, f"no tall tile: max_qo_len {problem.max_qo_len} fits the short one"])
    tall = Tile(max(64, rows), 64, problem.family)
    return TileChoice(short=short, tall=tall, why=[*why, "tall: 64 rows share each key that is loaded, for prefill"])
