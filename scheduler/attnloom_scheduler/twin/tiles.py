"""Block rows -> q tiles with the runs of keys they see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from attnloom.errors import PlanError
from attrs import evolve, frozen

from attnloom_scheduler.inputs import PlanInput

Ranges = Callable[[int, int, int, int], list[tuple[int, int]]]

FEW_FILLS = 6
"""How often the keys of a batch may fill the cache for its items to be marked as read once."""


@frozen(kw_only=True)
class Tile:
    """At most `t_q` packed rows of one block row, and the key tiles they see.

    Key tiles are numbered over the (up to two) `runs` of keys, so that a cut never falls on keys that nobody sees.
    """

    level: int
    row: int
    q_begin: int
    tokens: tuple[int, ...]
    row_tokens_before: int
    request: int
    tile_class: int
    t_kv: int
    runs: tuple[tuple[int, int], ...]
    first: int = 0
    last: int = 0
    whole: bool = False
    partial: bool = False

    @property
    def run_tiles(self) -> int:
        """Key tiles of the first run."""
        return ceil_div(self.runs[0][1] - self.runs[0][0], self.t_kv) if self.runs else 0

    def kv_begin(self, tile: int) -> int:
        """Row ordinal of the first key of a key tile."""
        if not self.runs:
            return 0
        if tile < self.run_tiles or len(self.runs) == 1:
            return self.runs[0][0] + tile * self.t_kv
        return self.runs[1][0] + (tile - self.run_tiles) * self.t_kv

    def kv_end(self, tile: int) -> int:
        """Row ordinal after the last key of the key tiles before `tile`."""
        if not self.runs:
            return 0
        if tile <= self.run_tiles:
            return min(self.runs[0][0] + tile * self.t_kv, self.runs[0][1])
        return min(self.runs[1][0] + (tile - self.run_tiles) * self.t_kv, self.runs[1][1])

    def keys(self, first: int, last: int) -> int:
        """Keys of key tiles `[first, last)`."""

        def before(tile: int) -> int:
            seen = 0
            for low, high in self.runs:
                tiles = ceil_div(high - low, self.t_kv)
                seen += min(max(tile, 0) * self.t_kv, high - low)
                tile -= tiles
            return seen

        return before(last) - before(first)


class Job:
    """A batch cut to q tiles, and the prices of its pieces."""

    def __init__(self, inputs: PlanInput, index: Any, ranges: Ranges | None):
        self.inputs, self.index = inputs, index
        self.classes = list(inputs.classes)[: inputs.num_classes]
        self.heads, self.group, self.workers = inputs.num_kv_heads, inputs.group, inputs.num_workers
        keys = [c.beta + c.row_beta * self.group for c in self.classes]
        self.min_tiles = [
            max(1, ceil_div(c.alpha, key * c.t_kv)) if key else (1 << 31) - 1
            for c, key in zip(self.classes, keys, strict=True)
        ]
        self.prefill = False
        self.tiles = list(cut_tiles(self, ranges))
        self.total = sum(self.cost(t, t.first, t.last) * self.heads for t in self.tiles)
        self.keys = sum(t.keys(t.first, t.last) for t in self.tiles)
        read = self.keys * inputs.kv_bytes_per_key * self.heads
        few = 0 < read < (inputs.cache_bytes + 1) * FEW_FILLS
        self.read_once = inputs.workers_per_processor > 1 and not self.prefill and few

    def cost(self, tile: Tile, first: int, last: int) -> int:
        """Picoseconds of key tiles `[first, last)` for one kv head."""
        return self.classes[tile.tile_class].alpha + self.key_cost(tile) * tile.keys(first, last)

    def key_cost(self, tile: Tile) -> int:
        """Picoseconds of a key of the tile."""
        c = self.classes[tile.tile_class]
        return c.beta + c.row_beta * self.rows(tile)

    def merge_cost(self, part_rows: int) -> int:
        """Picoseconds of merging so many part rows."""
        return self.inputs.merge_base + ceil_div(self.inputs.gamma * part_rows, self.workers) if part_rows else 0

    def rows(self, tile: Tile) -> int:
        """Packed rows of the tile for one kv head."""
        return len(tile.tokens) * self.group

    def divisible(self, tile: Tile) -> bool:
        """Whether the tile's keys may be split."""
        return not tile.whole and tile.last - tile.first >= 2 * self.min_tiles[tile.tile_class]


def cut_tiles(job: Job, ranges: Ranges | None):
    """Yields the q tiles of all block rows, by level, row, token and key."""
    rows_of_token = Counter(token for level in job.index.levels for token in _tokens(level, 0, level.row_indptr[-1]))
    for level_id, level in enumerate(job.index.levels):
        for row, kv_len in enumerate(int(n) for n in level.kv_len):
            begin, end = int(level.row_indptr[row]), int(level.row_indptr[row + 1])
            tile_class = _class_of(job, (end - begin) * job.group)
            c = job.classes[tile_class]
            if job.group > c.t_q:
                raise PlanError(f"group {job.group} is more than t_q {c.t_q} of every tile class; use a taller tile")
            step = c.t_q // job.group
            job.prefill |= end > begin and (tile_class == 1 or end - begin > step)
            for q_begin in range(begin, end, step):
                tokens = _tokens(level, q_begin, min(q_begin + step, end))
                seen = [(0, kv_len)] if ranges is None else ranges(level_id, row, q_begin, len(tokens))
                requests = {int(job.index.token_request[token]) for token in tokens}
                tile = Tile(
                    level=level_id,
                    row=row,
                    q_begin=q_begin,
                    tokens=tokens,
                    row_tokens_before=q_begin - begin,
                    request=requests.pop() if len(requests) == 1 else -1,
                    tile_class=tile_class,
                    t_kv=c.t_kv,
                    runs=_snap(seen, c.t_kv, kv_len),
                    partial=any(rows_of_token[token] > 1 for token in tokens),
                )
                tile = evolve(tile, last=sum(ceil_div(high - low, c.t_kv) for low, high in tile.runs))
                yield from _chunks(tile, job, int(level.kv_start[row])) if job.inputs.batch_invariant_chunk else [tile]


def _class_of(job: Job, rows: int) -> int:
    if job.inputs.batch_invariant_chunk:
        return job.inputs.invariant_class
    return int(len(job.classes) == 2 and (rows > job.classes[0].t_q or job.group > job.classes[0].t_q))


def _snap(intervals: list[tuple[int, int]], t_kv: int, kv_len: int) -> tuple[tuple[int, int], ...]:
    """Widens intervals to multiples of `t_kv` within `[0, kv_len)`, drops empty ones and joins those that touch."""
    runs: list[tuple[int, int]] = []
    for low, high in intervals:
        if low >= high or low >= kv_len or high <= 0:
            continue
        run = max(low, 0) // t_kv * t_kv, min(ceil_div(high, t_kv) * t_kv, kv_len)
        if runs and run[0] <= runs[-1][1]:
            run = runs[-1][0], max(run[1], runs.pop()[1])
        runs.append(run)
    return tuple(runs)


def _chunks(tile: Tile, job: Job, kv_start: int):
    """Batch-invariant: one tile a chunk; chunks end at multiples of the chunk size from the request's first key."""
    size = job.inputs.batch_invariant_chunk
    shift = kv_start % size // tile.t_kv * tile.t_kv
    chunk_of = [(tile.kv_begin(i) + shift) // size for i in range(tile.last)]
    ends = [i for i in range(1, tile.last + 1) if i == tile.last or chunk_of[i] != chunk_of[i - 1]] or [0]
    for first, last in zip([0, *ends], ends, strict=False):
        yield evolve(tile, first=first, last=last, whole=True, partial=len(ends) > 1)


def _tokens(level: Any, begin: int, end: int) -> tuple[int, ...]:
    if level.row_tokens is None:
        return tuple(range(int(begin), int(end)))
    return tuple(int(token) for token in level.row_tokens[begin:end])


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return (a + b - 1) // b
