"""Two ways to deal q tiles to workers."""

from __future__ import annotations

import heapq
from typing import Any

from attrs import define, field

from attnloom_scheduler.twin.tiles import Job, Tile, ceil_div

NEVER = 1 << 63
MAX_LOAD = (1 << 63) - 1 >> 16


@define
class Piece:
    """What one item will do: heads and key tiles of one q tile."""

    tile: int
    head0: int
    heads: int
    first: int
    last: int
    worker: int = -1
    part_row: int = -1


@define
class Partition:
    """Pieces by tile, head and key; `queue_order` lists them as workers take them."""

    pieces: list[Piece] = field(factory=list)
    queue_order: list[int] | None = None
    busiest: int = 0
    total: int = 0
    part_rows: int = 0
    makespan: int = NEVER


def divide(job: Job) -> tuple[Partition, str]:
    """The better partition and its name. Prefill may cost 1/32 more where it runs longest first: there heads share the
    cache, which the prediction leaves out."""
    if deal := even(job):
        return deal, "longest_first"
    cut = contiguous_cut(job)
    limit = cut.makespan + cut.makespan // 32 if job.prefill else cut.makespan - 1
    few = len(job.tiles) * job.heads <= 8 * job.workers
    if job.prefill or (few and limit > _nearly_perfect(job)):
        deal = longest_first(job, limit)
        if deal.makespan != NEVER:
            return deal, "longest_first"
    return cut, "contiguous_cut"


def contiguous_cut(job: Job) -> Partition:
    """Walks the tiles in order and gives each worker an equal share of the cost, cutting between heads or keys.

    The share is computed anew at each worker, so rounding never piles up, and reserves one `alpha` for every worker to
    come: the cut between two pays it. A worker's whole heads of a tile are one piece.
    """
    out = Partition()
    cut_cost = max((job.classes[t.tile_class].alpha for t in job.tiles if job.divisible(t)), default=0)
    left, worker, load = job.total, 0, 0

    def share() -> int:
        to_come = job.workers - worker
        return ceil_div(left + cut_cost * (to_come - 1), to_come)

    budget = share()
    for index, tile in enumerate(job.tiles):
        unit = job.cost(tile, tile.first, tile.last)
        head, at = 0, tile.first
        while head < job.heads:
            heads = 0
            if at == tile.first:
                heads = job.heads - head if worker == job.workers - 1 else min(job.heads - head, max(budget, 0) // unit)
            if heads > 0:
                piece, cost = Piece(index, head, heads, tile.first, tile.last, worker), heads * unit
            else:
                last_worker = worker == job.workers - 1
                end = tile.last if last_worker else _cut_of(job, tile, at, budget, idle=load == 0)
                if end is None:
                    worker, load = worker + 1, 0
                    budget = share()
                    continue
                piece, cost = Piece(index, head, 1, at, end, worker), job.cost(tile, at, end)
            if not _joins(job, out.pieces, piece):
                _add(job, out, piece)
            else:
                out.pieces[-1].heads += piece.heads
                out.part_rows += piece.heads * job.rows(tile) * tile.partial
            out.total += cost
            load, budget = load + cost, budget - cost
            out.busiest = max(out.busiest, load)
            left -= cost if piece.last == tile.last else cost - job.classes[tile.tile_class].alpha
            if piece.last == tile.last:
                head, at = head + piece.heads, tile.first
            else:
                at, worker, load = piece.last, worker + 1, 0
                budget = share()
    out.makespan = out.busiest + job.merge_cost(out.part_rows)
    return out


def _joins(job: Job, pieces: list[Piece], piece: Piece) -> bool:
    """Whether a piece and the last one are whole heads of one tile for one worker."""
    if not pieces:
        return False
    tile, last = job.tiles[piece.tile], pieces[-1]
    whole = all((p.first, p.last) == (tile.first, tile.last) for p in (last, piece))
    return whole and (last.tile, last.worker) == (piece.tile, piece.worker)


def _cut_of(job: Job, tile: Tile, at: int, budget: int, *, idle: bool) -> int | None:
    """Where a worker's part of one head ends: nearest to its budget, no sliver on either side; none: it takes none."""
    c, least = job.classes[tile.tile_class], job.min_tiles[tile.tile_class]
    tiles, rest = tile.last - at, job.cost(tile, at, tile.last)
    if rest <= budget:
        return tile.last
    if tile.whole or tiles < 2 * least:
        return tile.last if idle or 2 * budget >= rest else None
    step = job.key_cost(tile) * tile.t_kv
    wanted = (budget - c.alpha + step // 2) // step if budget > c.alpha else 0
    if wanted < least:
        return at + least if idle or 2 * wanted >= least else None
    most = tiles - least
    if wanted <= most:
        return at + wanted
    return tile.last if 2 * (wanted - most) >= least else at + most


def longest_first(job: Job, limit: int, sharers: int = 1, piece_heads: int | None = None) -> Partition:
    """Algorithm 1 of the FlashInfer paper: keys chunked at the mean load, the longest piece to the least loaded worker.

    In prefill, heads go in groups whose K and V fit half the cache, or somewhat more where the groups are equal then,
    one group after the other. Its `makespan` is `NEVER` where it cannot end within `limit`. The mean load is that where
    one in `sharers` workers has some; to each, keys come as fast as to all `sharers` of its processor.
    """
    out, inputs = Partition(), job.inputs
    units = len(job.tiles) * job.heads
    group_heads = _group_heads(job)
    per_group = ceil_div(group_heads, piece_heads or min(max(units // (8 * job.workers), 1), group_heads))
    piece_heads = ceil_div(group_heads, per_group)
    mean_keys = ceil_div(job.keys * job.heads * sharers, job.workers)

    entries = []  # (-cost, first piece, tile, first, last); by cost, then as they lie
    head_groups = [
        [(h, min(piece_heads, end - h)) for h in range(begin, end, piece_heads)]
        for begin, end in ((b, min(b + group_heads, job.heads)) for b in range(0, job.heads, group_heads))
    ]
    head_pieces = [piece for group in head_groups for piece in group]
    piece_of = {}
    for index, tile in enumerate(job.tiles):
        ends = _chunk_ends(job, tile, mean_keys)
        spans = list(zip([tile.first, *ends], ends, strict=False))
        for number, (first, last) in enumerate(spans):
            alpha = job.classes[tile.tile_class].alpha
            cost = alpha + (job.cost(tile, first, last) - alpha) // sharers
            entries.append((-cost, len(out.pieces) + number, index, first))
            out.total += cost * job.heads
        for head0, heads in head_pieces:
            for first, last in spans:
                piece_of[index, head0, first] = len(out.pieces)
                _add(job, out, Piece(index, head0, heads, first, last))
    most = limit - job.merge_cost(out.part_rows)
    if most >= MAX_LOAD:
        return out
    entries.sort()
    loads = [(0, worker) for worker in range(inputs.num_workers)]
    out.queue_order = []
    for group in head_groups:
        for minus_cost, _, index, first in entries:
            for head0, heads in group:
                piece = piece_of[index, head0, first]
                load, out.pieces[piece].worker = loads[0]
                load -= minus_cost * heads
                heapq.heapreplace(loads, (load, out.pieces[piece].worker))
                out.queue_order.append(piece)
                out.busiest = max(out.busiest, load)
    if out.busiest <= most:
        out.makespan = out.busiest + job.merge_cost(out.part_rows)
    return out


def even(job: Job) -> Partition | None:
    """The pieces of longest first as they lie, where so each has a processor, or a worker, to itself and none waits
    long for another: a cut, which splits more, is no better. Equal rows may be whole, two heads a piece: they need no
    merge, and the memory, which all share, hastens those who have more to do."""
    units, shared = len(job.tiles) * job.heads, max(job.inputs.workers_per_processor, 1)
    ways = [(shared, 1), (1, 1)]
    equal = len({job.cost(tile, tile.first, tile.last) for tile in job.tiles}) == 1
    if shared > 1 and equal and units > job.workers and job.heads % 2 == 0:
        ways.append((1, 2))
    for sharers, heads in ways:
        places = job.workers // sharers
        if job.prefill or not 0 < units // heads <= places:
            continue
        deal = longest_first(job, MAX_LOAD - 1, sharers, heads)
        mean = ceil_div(deal.total, places)
        fits = deal.makespan != NEVER and len(deal.pieces) <= places and deal.busiest <= mean + mean // 16
        if fits and (heads == 1 or len(deal.pieces) == units // 2):
            deal.queue_order = None
            for worker, piece in enumerate(deal.pieces):
                piece.worker = worker
            return deal
    return None


def _nearly_perfect(job: Job) -> int:
    perfect = ceil_div(job.total, job.workers)
    return perfect + perfect // 16


def _group_heads(job: Job) -> int:
    row_keys = sum(
        int(n) for level in job.index.levels for n, q in zip(level.kv_len, _counts(level), strict=True) if q > 0
    )
    size = row_keys * job.inputs.kv_bytes_per_key
    if not job.prefill or not job.inputs.cache_bytes or not size:
        return job.heads
    fit = min(max(job.inputs.cache_bytes // 2 // size, 1), job.heads)
    return next((n for n in range(fit, 2 * fit) if job.heads % n == 0), fit)


def _chunk_ends(job: Job, tile: Tile, mean_keys: int) -> list[int]:
    if not job.divisible(tile):
        return [tile.last]
    least, tiles = job.min_tiles[tile.tile_class], tile.last - tile.first
    chunks = min(ceil_div(tiles, max(least, ceil_div(mean_keys, tile.t_kv))), tiles // least)
    return [tile.first + tiles * (i + 1) // chunks for i in range(chunks)]


def _add(job: Job, out: Partition, piece: Piece) -> None:
    """Adds a piece; a partial one gets the next rows of the workspace."""
    tile = job.tiles[piece.tile]
    if tile.partial or (piece.first, piece.last) != (tile.first, tile.last):
        piece.part_row = out.part_rows
        out.part_rows += piece.heads * job.rows(tile)
    out.pieces.append(piece)


def _counts(level: Any) -> list[int]:
    return [int(b) - int(a) for a, b in zip(level.row_indptr[:-1], level.row_indptr[1:], strict=True)]
