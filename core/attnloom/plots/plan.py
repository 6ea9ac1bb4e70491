"""A picture of a plan: what each worker does, one item after the other, and how even it is."""

from __future__ import annotations

from typing import Any

from attnloom.errors import NotPlannedError
from attnloom.plots import COLOURS, new_figure

_MOST_LABELS = 33
_MIXED = "#bbbbbb"


def plot_plan(attn: Any, *, title: str = "") -> Any:
    """The queues of the plan in force: workers downward, predicted time to the right, an item a bar.

    The colour is the request's, grey where an item holds tokens of several; a bar with a dark edge writes a partial
    state. What comes after the last bar is the merge of those.

    Args:
        attn: an `AttentionWrapper` that has planned.

    Returns:
        A `matplotlib.figure.Figure`, to save or to show.

    Raises:
        NotPlannedError: nothing is planned. UnsupportedError: matplotlib is missing.
    """
    if attn._plan is None:
        raise NotPlannedError("there is no plan to draw: call plan(index) first")
    planned = attn._plan
    view, plan = planned.view, planned.view.decode()
    times = item_times(plan, planned._input)
    workers = len(plan.queues)
    longest = max((sum(queue) for queue in times), default=0.0)
    height = min(15.0, max(2.8, 1.8 + 0.14 * workers))
    figure = new_figure(11.0, height)
    axes = figure.add_subplot()
    for worker, queue in enumerate(plan.queues):
        begin = 0.0
        for item, time in zip(queue, times[worker], strict=True):
            colour = _MIXED if item.request < 0 else COLOURS[item.request % len(COLOURS)]
            edge = ("black", 0.9) if item.is_partial else ("white", 0.3)
            bar = {"left": begin, "height": 0.86, "color": colour, "edgecolor": edge[0], "linewidth": edge[1]}
            axes.barh(worker, time, **bar)
            if time > 0.03 * longest:
                shade = "black" if item.request < 0 else "white"
                axes.text(begin + time / 2, worker, _label(item), ha="center", va="center", fontsize=6, color=shade)
            begin += time
    loads = [sum(queue) for queue in times]
    busiest, mean = max(loads, default=0.0), sum(loads) / max(1, workers)
    merge = max(0.0, (view.makespan - view.busiest) / 1e6)
    axes.axvline(mean, color="black", linestyle="--", linewidth=1.0, label=f"mean {mean:.1f} us")
    if merge:
        axes.axvspan(busiest, busiest + merge, color="#dddddd", label=f"merge of {view.num_merge} rows {merge:.1f} us")
    axes.set_xlim(0, (busiest + merge) * 1.02 or 1.0)
    axes.set_ylim(workers - 0.5, -0.5)
    axes.set_yticks(range(0, workers, max(1, -(-workers // _MOST_LABELS))))
    axes.tick_params(labelsize=7)
    axes.set_xlabel("predicted microseconds", fontsize=8)
    axes.set_ylabel("worker", fontsize=8)
    axes.set_title("\n".join(filter(None, (title, summary(view, loads)))), fontsize=10, loc="left")
    figure.legend(loc="outside lower right", fontsize=8, frameon=False, ncols=2)
    return figure


def _label(item: Any) -> str:
    return f"level {item.level}" if item.request < 0 else f"request {item.request}"


def item_times(plan: Any, inputs: Any) -> list[list[float]]:
    """Predicted microseconds of each item of each queue of a `Plan` that was made from `inputs`.

    That is `alpha + (beta + row_beta * rows) * keys` for each kv head that the item covers. Keys between the two runs
    of a window and its sink count here, though the kernel skips them.
    """

    def time(item) -> float:
        tile, rows = inputs.classes[item.tile_class], item.q_tokens * inputs.group
        key = tile.beta + tile.row_beta * rows
        return item.heads * (tile.alpha + key * (item.kv_end - item.kv_begin)) / 1e6

    return [[time(item) for item in queue] for queue in plan.queues]


def summary(view: Any, loads: list[float]) -> str:
    """How much there is to do and how evenly it is dealt, in a line."""
    mean = sum(loads) / max(1, len(loads))
    balance = f"busiest / mean {max(loads) / mean:.3f}" if mean else "nothing to do"
    idle = sum(load == 0 for load in loads)
    return (
        f"{view.num_items} items of {view.num_tiles} tiles on {len(loads)} workers ({idle} idle), {balance}, "
        f"{view.num_part_rows} partial rows, {view.partitioner.replace('_', ' ')}"
    )
