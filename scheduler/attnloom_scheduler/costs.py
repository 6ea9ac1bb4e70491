"""Predicted costs of work items and merges, in picoseconds.

An item costs `alpha + beta * keys` for each kv head it covers, a merge `merge_base + gamma * part rows / workers`.

The constants below are estimates, from memory bandwidth and arithmetic peak, until a calibration on the machine
replaces them: `host` assumes a core of about 20 GFLOP/s and 8 GB/s, `cuda` one SM of an H100 (3.35 TB/s and about 600
dense bf16 TFLOP/s in use, over 132 SMs). Plans are right whatever the constants are; only their balance suffers.
"""

from __future__ import annotations

from attrs import frozen

from attnloom_scheduler.inputs import TileClass


@frozen(kw_only=True)
class Costs:
    """What items and merges cost one worker of a family.

    Attributes:
        item: picoseconds of starting and finishing an item, whatever its keys.
        key_byte: picoseconds of loading one byte of K or V (memory bound).
        flop: picoseconds of one floating-point operation (compute bound).
        merge_base: picoseconds of a merge of any size (a launch, or a barrier between threads).
        merge_row_byte: picoseconds of one byte of a merged part row.
        cache_bytes: bytes of the cache that workers share.
    """

    item: int
    key_byte: float
    flop: float
    merge_base: int
    merge_row_byte: float
    cache_bytes: int


TABLE = {
    "host": Costs(
        item=500_000, key_byte=125.0, flop=50.0, merge_base=3_000_000, merge_row_byte=250.0, cache_bytes=1 << 20
    ),
    "cuda": Costs(
        item=2_000_000, key_byte=40.0, flop=0.22, merge_base=3_000_000, merge_row_byte=80.0, cache_bytes=50 << 20
    ),
}


def tile_class(costs: Costs, t_q: int, t_kv: int, *, rows: int, head_dim: int, head_dim_v: int, kv_itemsize: int):
    """The `TileClass` of a tile whose items hold about `rows` packed rows (`<= t_q`), for `head_dim` and `head_dim_v`.

    `beta` is the larger of the time to load a key and value and the time to multiply them with every row.
    """
    load = costs.key_byte * (head_dim + head_dim_v) * kv_itemsize
    multiply = costs.flop * 2 * (head_dim + head_dim_v) * rows
    return TileClass(t_q=t_q, t_kv=t_kv, alpha=max(1, costs.item), beta=max(1, round(max(load, multiply))))


def merge_row(costs: Costs, head_dim_v: int) -> int:
    """`gamma`: picoseconds of merging one part row of `head_dim_v` float32 and its `(m, d)`."""
    return max(1, round(costs.merge_row_byte * 4 * (head_dim_v + 2)))
