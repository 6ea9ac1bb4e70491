"""The core's choice of tiles on CUDA devices: the largest that registers and shared memory of the architecture hold."""

from __future__ import annotations

from attnloom.errors import UnsupportedError
from attnloom.jit.cuda_kernel import KernelConfig
from attnloom.tile import Tile, TileChoice, TileProblem

SHORT_ROWS = (16, 32, 64, 128)
TALL = (("wgmma", 128, 64), *(("mma", *size) for size in ((128, 64), (64, 64), (128, 32), (64, 32), (32, 32))))
"""Tall tiles in the order they are tried, if the device has their family: more rows load K and V fewer times, more keys
cost fewer barriers."""


def choose(problem: TileProblem) -> TileChoice:
    """The tiles of a `problem` of the family `mma`; where none fits, the smallest, whose kernel says what is wrong."""
    rows = next((rows for rows in SHORT_ROWS if problem.group <= rows), SHORT_ROWS[-1])
    most = None if problem.max_qo_len is None else problem.max_qo_len * problem.group
    why = [f"short: {rows} packed rows, the smallest tile that holds a decode step of group {problem.group}"]
    tried: list[str] = []
    talls = [tall for tall in TALL if tall[0] in (problem.family, *problem.families) and tall[1] >= rows]
    for family, tall_rows, keys in talls:
        short, tall = Tile(rows, keys, family if tall_rows == rows else "mma"), Tile(tall_rows, keys, family)
        alone = tall_rows == rows or (most is not None and most <= rows)
        config, problem_text = _fit(problem, short, None if alone else tall)
        if config is None:
            tried.append(f"{family} {tall_rows} x {keys} does not fit: {problem_text}")
            continue
        if alone:
            why.append(f"no tall class: {rows} rows hold all that meet")
        else:
            first = f"the first that fits of {_listed(talls)}"
            why.append(f"tall: {family}, {tall_rows} packed rows x {keys} keys, {first}")
        why.append(
            f"{problem.device}: {config.shared_bytes} of {config.shared_limit} bytes of shared memory, "
            f"{config.blocks} block(s) a multiprocessor, {config.rows_a_warp} rows in the registers of a warp"
        )
        return TileChoice(short=short, tall=None if alone else tall, why=[*why, *tried])
    return TileChoice(short=Tile(rows, TALL[-1][2], "mma"), why=[*why, *tried])


def _fit(problem: TileProblem, short: Tile, tall: Tile | None) -> tuple[KernelConfig | None, str]:
    """The kernel with these tiles, or none and what keeps it from fitting."""
    try:
        return KernelConfig(
            dtype=problem.dtype,
            kv_dtype=problem.kv_dtype,
            out_dtype=problem.dtype,
            head_dim=problem.head_dim,
            head_dim_v=problem.head_dim_v,
            short=short,
            tall=tall,
            arch=problem.device,
        ), ""
    except (UnsupportedError, ValueError) as error:
        return None, str(error)


def _listed(tiles) -> str:
    return ", ".join(f"{family} {rows} x {keys}" for family, rows, keys in tiles)
