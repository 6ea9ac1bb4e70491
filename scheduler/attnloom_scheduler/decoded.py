"""A plan's bytes as named items and merge lists, for tests and pictures."""

from __future__ import annotations

import numpy as np
from attnloom.errors import PlanError
from attrs import frozen

from attnloom_scheduler.inputs import ITEM_PARTIAL, ITEM_WHOLE_ROW, PLAN_ABI, Item, PlanHeader, WorkerQueue

FIELDS = tuple(name for name, _ in Item._fields_)
_ITEM, _QUEUE = np.dtype(Item), np.dtype(WorkerQueue)  # each takes numpy long to make


@frozen(kw_only=True)
class WorkItem:
    """One work item; `plan.h` explains the fields."""

    worker: int
    page_begin: int
    q_begin: int
    q_tokens: int
    request: int
    kv_begin: int
    kv_end: int
    kv_start: int
    kv_offset: int
    level_row: int
    row_tokens_before: int
    row_kv_len: int
    part_row: int
    merge_id: int
    head0: int
    heads: int
    level: int
    tile_class: int
    flags: int

    @property
    def is_partial(self) -> bool:
        """Whether it writes partials for a merge, not the output itself."""
        return bool(self.flags & ITEM_PARTIAL)

    @property
    def is_whole_row(self) -> bool:
        """Whether it holds every key of its block row."""
        return bool(self.flags & ITEM_WHOLE_ROW)


@frozen(kw_only=True)
class Merge:
    """One output row made of partials: workspace rows in KV order."""

    token: int
    head: int
    parts: tuple[int, ...]


@frozen(kw_only=True)
class Plan:
    """A decoded plan.

    Attributes:
        queues: the items of each worker, in the order it runs them.
        merges: the output rows made of partials, by token then query head.
        num_part_rows: rows of the workspace.
        fused_merge: whether the items of a row may merge it, since they have all their rows in common.
        t_q, t_kv: of each tile class.
    """

    queues: tuple[tuple[WorkItem, ...], ...]
    merges: tuple[Merge, ...]
    num_part_rows: int
    fused_merge: bool
    t_q: tuple[int, ...]
    t_kv: tuple[int, ...]

    @property
    def items(self) -> list[WorkItem]:
        """All items, worker by worker."""
        return [item for queue in self.queues for item in queue]


def decode(data: bytes) -> Plan:
    """The plan in `data`, which begins with a `PlanHeader`.

    Raises:
        PlanError: if the plan is of another ABI.
    """
    header = PlanHeader.from_buffer_copy(data)
    if header.abi != PLAN_ABI:
        raise PlanError(f"a plan of ABI {header.abi} was given, this Python reads ABI {PLAN_ABI}")

    def ints(offset: int, count: int) -> list[int]:
        return np.frombuffer(data, np.int32, count, offset).tolist()

    workers = (WorkerQueue * header.num_workers).from_buffer_copy(data, header.workers)
    others = (Item * max((worker.end for worker in workers), default=0)).from_buffer_copy(data, header.items)
    queues = []
    for number, worker in enumerate(workers):
        queue = [worker.first, *others[worker.next : worker.end]] if worker.first.q_tokens else []
        queues.append(tuple(_work_item(number, item) for item in queue))
    indptr = ints(header.merge_indptr, header.num_merge + 1)
    parts = ints(header.merge_part, header.num_merge_parts)
    rows = zip(ints(header.merge_token, header.num_merge), ints(header.merge_head, header.num_merge), strict=True)
    merges = (
        Merge(token=token, head=head, parts=tuple(parts[indptr[i] : indptr[i + 1]]))
        for i, (token, head) in enumerate(rows)
    )
    return Plan(
        queues=tuple(queues),
        merges=tuple(merges),
        num_part_rows=header.num_part_rows,
        fused_merge=bool(header.fused_merge),
        t_q=tuple(header.t_q[: header.num_classes]),
        t_kv=tuple(header.t_kv[: header.num_classes]),
    )


def items_of(data: bytes) -> np.ndarray:
    """The items of the plan in `data`, in no order, with the fields of `Item`."""
    header = PlanHeader.from_buffer_copy(data)
    queues = np.frombuffer(data, _QUEUE, header.num_workers, header.workers)
    # As bytes: numpy copies structures field by field.
    first = queues.view(np.uint8).reshape(-1, _QUEUE.itemsize)[queues["first"]["q_tokens"] > 0, : _ITEM.itemsize]
    count = (header.num_items - len(first)) * _ITEM.itemsize
    others = np.frombuffer(data, np.uint8, count, header.items).reshape(-1, _ITEM.itemsize)
    return np.concatenate([first, others]).view(_ITEM)[:, 0]


def _work_item(worker: int, item: Item) -> WorkItem:
    return WorkItem(worker=worker, **{name: getattr(item, name) for name in FIELDS})
