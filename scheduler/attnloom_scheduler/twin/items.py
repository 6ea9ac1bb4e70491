"""A partition -> queues of items and merge lists."""

from __future__ import annotations

from collections import defaultdict

from attnloom_scheduler.decoded import Merge, Plan, WorkItem
from attnloom_scheduler.inputs import ITEM_PARTIAL, ITEM_READ_ONCE, ITEM_WHOLE_ROW
from attnloom_scheduler.twin.partition import Partition, Piece
from attnloom_scheduler.twin.tiles import Job


def write_plan(job: Job, partition: Partition) -> Plan:
    """The queues of items and the merge lists of a partition."""
    parts = defaultdict(list)  # (token, query head) -> [(kv_index of the first key, piece, workspace row)]
    for number, piece in enumerate(partition.pieces):
        if piece.part_row < 0:
            continue
        tile = job.tiles[piece.tile]
        first_key = int(job.index.levels[tile.level].kv_start[tile.row]) + tile.kv_begin(piece.first)
        for h in range(piece.heads):
            for t, token in enumerate(tile.tokens):
                for g in range(job.group):
                    row = piece.part_row + h * job.rows(tile) + t * job.group + g
                    parts[token, (piece.head0 + h) * job.group + g].append((first_key, number, row))
    merged = sorted(parts)
    entry_of = {key: entry for entry, key in enumerate(merged)}
    queues = [[] for _ in range(job.workers)]
    order = range(len(partition.pieces)) if partition.queue_order is None else partition.queue_order
    for piece in (partition.pieces[i] for i in order):
        queues[piece.worker].append(_item(job, piece, entry_of))
    return Plan(
        queues=tuple(map(tuple, queues)),
        merges=tuple(
            Merge(token=token, head=head, parts=tuple(row for *_, row in sorted(parts[token, head])))
            for token, head in merged
        ),
        num_part_rows=partition.part_rows,
        fused_merge=len(job.index.levels) == 1,
        t_q=tuple(c.t_q for c in job.classes),
        t_kv=tuple(c.t_kv for c in job.classes),
    )


def _item(job: Job, piece: Piece, entry_of: dict[tuple[int, int], int]) -> WorkItem:
    tile = job.tiles[piece.tile]
    level = job.index.levels[tile.level]
    partial = piece.part_row >= 0
    kv_begin = tile.kv_begin(piece.first)
    kv_end = max(kv_begin, tile.kv_end(piece.last))
    kv_len = int(level.kv_len[tile.row])
    whole_row = kv_begin == 0 and kv_end == kv_len
    return WorkItem(
        worker=piece.worker,
        page_begin=int(level.page_begin[tile.row]),
        q_begin=tile.q_begin,
        q_tokens=len(tile.tokens),
        request=tile.request,
        kv_begin=kv_begin,
        kv_end=kv_end,
        kv_start=int(level.kv_start[tile.row]),
        kv_offset=int(level.kv_offset[tile.row]),
        level_row=tile.row,
        row_tokens_before=tile.row_tokens_before,
        row_kv_len=kv_len,
        part_row=piece.part_row,
        merge_id=entry_of[tile.tokens[0], piece.head0 * job.group] if partial else -1,
        head0=piece.head0,
        heads=piece.heads,
        level=tile.level,
        tile_class=tile.tile_class,
        flags=(ITEM_PARTIAL if partial else 0)
        | (ITEM_WHOLE_ROW if whole_row else 0)
        | (ITEM_READ_ONCE if job.read_once else 0),
    )
