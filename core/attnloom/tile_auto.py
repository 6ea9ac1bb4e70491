"""The core's own choice of tiles, named `auto`."""

from __future__ import annotations

from attnloom.tile import Tile, TileChoice, TileProblem


def choose(problem: TileProblem) -> TileChoice | None:
    """The tiles of `problem`; none for a family that this rule does not know."""
    if problem.family == "host":
        return _host(problem)
    if problem.family == "mma":
        from attnloom.tile_auto_cuda import choose as choose_cuda

        return choose_cuda(problem)
    return None


def _host(problem: TileProblem) -> TileChoice:
    """Packed K and V of a tile stay in the second-level cache while the rows of an item stream over them."""
    widest = max(problem.head_dim, problem.head_dim_v)
    t_kv = 128 if widest <= 128 else 64
    rows = max(64, -(-problem.group // 4) * 4)
    why = [
        f"host: {t_kv} keys at a time, so that packed K and V of head_dim {widest} stay below half a MiB of cache",
        "short: 16 packed rows, a decode step of any usual group in one item",
        f"tall: {rows} packed rows share each packing of K and V (twice as many gain 2 %, in coarser causal tiles)",
    ]
    if rows > 64:
        why.append(f"a query token has {problem.group} packed rows, so that no tile of fewer holds one")
    most = None if problem.max_qo_len is None else problem.max_qo_len * problem.group
    if most is not None and most <= 16:
        why[2] = f"no tall class: {problem.max_qo_len} query tokens of group {problem.group} fit the short one"
        return TileChoice(short=Tile(16, t_kv), why=why)
    return TileChoice(short=Tile(16, t_kv), tall=Tile(rows, t_kv), why=why)
