"""Predicted costs of work items and merges, in picoseconds.

An item costs `alpha + (beta + row_beta * rows) * keys` for each kv head it covers, a merge
`merge_base + gamma * part rows / workers`.

Plans are right whatever the constants are; only their balance suffers. `host` was measured on one core of an AMD EPYC
with AVX-512 beside a busy one, on float32 and bfloat16 of head dim 64 and 128: 88 to 129 ps a byte, 6 to 12 ps a FLOP.
`mma` and `wgmma` were measured on an H200, whose 132 multiprocessors hold 264 workers: decode of 64 x 4,096 keys
(key_byte), causal prefill (flop, item_row), shared prefixes (reread: workers that walk the same pages at a time find
them in the second-level cache). They predict those times within 10 %, but for what a launch costs whatever it does.
"""

from __future__ import annotations

from attrs import evolve, frozen

from attnloom_scheduler.inputs import TileClass


@frozen(kw_only=True)
class Costs:
    """What items and merges cost one worker of a family.

    Attributes:
        item: picoseconds of starting and finishing an item, whatever its rows and keys.
        item_row: picoseconds of one packed row of a tile: its query loaded, its output or partial written.
        key_byte: picoseconds of loading one byte of K or V (memory bound).
        flop: picoseconds of one floating-point operation (compute bound).
        merge_base: picoseconds of a merge of any size (a launch, or a barrier between threads).
        merge_row_byte: picoseconds of one byte of a merged part row.
        cache_bytes: bytes of the cache that workers share.
        reread: what keys cost that other rows of the batch load too, as a share of the first load.
        overlaps: keys are multiplied while others are loaded, so that they take the longer of both and not the sum.
    """

    item: int
    item_row: int
    key_byte: float
    flop: float
    merge_base: int
    merge_row_byte: float
    cache_bytes: int
    reread: float = 1.0
    overlaps: bool = True


_MMA = Costs(
    item=2_000_000,
    item_row=50_000,
    key_byte=63.0,
    flop=0.95,
    merge_base=1_000_000,
    merge_row_byte=130.0,
    cache_bytes=50 << 20,
    reread=0.45,
)

TABLE = {
    "host": Costs(
        item=300_000,
        item_row=20_000,
        key_byte=100.0,
        flop=10.0,
        merge_base=3_000_000,
        merge_row_byte=330.0,
        cache_bytes=1 << 20,
        reread=0.25,
        overlaps=False,
    ),
    "mma": _MMA,
    "wgmma": evolve(_MMA, flop=0.52),
}
"""Of each family of tiles."""


def tile_class(costs: Costs, t_q: int, t_kv: int, *, rows: int, head_dim: int, head_dim_v: int, kv_itemsize: int):
    """The `TileClass` of a tile of `head_dim` and `head_dim_v`, whose items hold about `rows` packed rows (`<= t_q`).

    `beta` is the time to load a key and value, `row_beta` that to multiply them with a row. Where the two overlap,
    `beta` is the longer one for all the rows, and `row_beta` 0.
    """
    load = costs.key_byte * (head_dim + head_dim_v) * kv_itemsize
    multiply = costs.flop * 2 * (head_dim + head_dim_v)
    beta, row_beta = (max(load, multiply * rows), 0) if costs.overlaps else (load, multiply)
    alpha = max(1, costs.item + costs.item_row * rows)
    return TileClass(t_q=t_q, t_kv=t_kv, alpha=alpha, beta=max(1, round(beta)), row_beta=round(row_beta))


def merge_row(costs: Costs, head_dim_v: int) -> int:
    """`gamma`: picoseconds of merging one part row of `head_dim_v` float32 and its `(m, d)`."""
    return max(1, round(costs.merge_row_byte * 4 * (head_dim_v + 2)))
