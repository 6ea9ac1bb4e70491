"""The scheduler again, in Python: the oracle that the C++ is held to, item by item. Read this one first.

A batch becomes q tiles (`tiles`), the tiles become pieces dealt to workers (`partition`: the smaller predicted
makespan wins), and the pieces become items and merge lists (`items`). All arithmetic is on integers, so two programs
agree to the last item.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from attnloom_scheduler.decoded import Plan
from attnloom_scheduler.inputs import PlanInput
from attnloom_scheduler.twin.items import write_plan
from attnloom_scheduler.twin.partition import divide
from attnloom_scheduler.twin.tiles import Job, Ranges

__all__ = ["Result", "plan"]


@frozen(kw_only=True)
class Result:
    """A plan and what it came to, in the words of `PlanView`."""

    plan: Plan
    makespan: int
    busiest: int
    total: int
    num_tiles: int
    partitioner: str


def plan(inputs: PlanInput, index: Any, ranges: Ranges | None = None) -> Result:
    """Plans a batch as `Planner.plan` does.

    Args:
        inputs: the settings; its `index`, `range_fn` and `range_ctx` are not read.
        index: a `ComposedIndex`, or anything with its `token_request` and `levels`.
        ranges: `(level, row, q_begin, q_tokens) -> [(low, high), ...]`, row ordinals that the tokens may see.

    Raises:
        PlanError: for some batches that cannot be planned; the C++ checks more.
    """
    job = Job(inputs, index, ranges)
    best, name = divide(job)
    return Result(
        plan=write_plan(job, best),
        makespan=best.makespan,
        busiest=best.busiest,
        total=best.total,
        num_tiles=len(job.tiles),
        partitioner=name if job.tiles else "nothing",
    )
