"""The core's own choice of tiles, named `auto`."""

from __future__ import annotations

from attnloom.tile import Tile, TileChoice, TileProblem


def choose(problem: TileProblem) -> TileChoice | None:
    """The tiles of `problem`; none for a family that this rule does not know."""
    return _host(problem) if problem.family == "host" else None


def _host(problem: TileProblem) -> TileChoice:
    """A packed tile of K and V should stay in the second-level cache while the rows of an item stream over it."""
    widest = max(problem.head_dim, problem.head_dim_v)
    t_kv = 128 if widest <= 128 else 64
    why = [
        f"host: {t_kv} keys at a time, so that packed K and V of head_dim {widest} stay below half a MiB of cache",
        "short: 16 packed rows, a decode step of any usual group in one item",
        "tall: 64 packed rows share each packing of K and V; more would cost causal tiles their skipped keys",
    ]
    tall = Tile(64, t_kv)
    if problem.max_qo_len is not None and problem.max_qo_len * problem.group <= 16:
        tall = None
        why[-1] = f"no tall class: at most {problem.max_qo_len} query tokens x group {problem.group} ever meet"
    return TileChoice(short=Tile(16, t_kv), tall=tall, why=why)
