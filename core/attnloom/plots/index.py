"""A picture of a block-sparse index: which query tokens read which pages of the cache, level by level."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnloom.dense_index import row_tokens
from attnloom.index import ComposedIndex, Level
from attnloom.index_arrays import as_host_array
from attnloom.plots import COLOURS, new_figure, runs

_MOST_LABELS = 24


def plot_index(index: ComposedIndex, *, title: str = "", kv_head: int = 0) -> Any:
    """The blocks of `index`: query tokens downward, pages of the cache to the right, in the order of their first use.

    A page that several requests share is one column, so a shared prefix is a tall block. A page that is used in part is
    drawn in part.

    Args:
        kv_head: whose page list to follow where a level has one for each head.

    Returns:
        A `matplotlib.figure.Figure`, to save or to show.

    Raises:
        UnsupportedError: matplotlib is missing. IndexFormatError: the page ids lie on a device.
    """
    from matplotlib.patches import Rectangle

    blocks = [list(blocks_of(level, index.page_size, kv_head)) for level in index.levels]
    columns = {page: place for place, page in enumerate(dict.fromkeys(b[1] for level in blocks for b in level))}
    width = min(16.0, max(7.0, 0.16 * len(columns) + 3.0))
    figure = new_figure(width, min(14.0, max(3.2, 0.12 * index.num_tokens + 2.0)))
    axes = figure.add_subplot()
    handles = []
    for number, (level, found) in enumerate(zip(index.levels, blocks, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        for tokens, page, begin, end in found:
            left, span = columns[page] + begin / index.page_size, (end - begin) / index.page_size
            for low, high in runs(tokens):
                box = Rectangle((left, low), span, high - low, facecolor=colour, edgecolor="white", linewidth=0.4)
                if level.mask_bits is not None:
                    box.set_hatch("////")
                axes.add_patch(box)
        rows = f"{level.num_rows} row{'s' * (level.num_rows != 1)}"
        label = f"level {number}: {rows}, {sum(map(_keys, found))} keys in {len(found)} blocks"
        label += ", masked by bits" if level.mask_bits is not None else ""
        handles.append(Rectangle((0, 0), 1, 1, facecolor=colour, label=label))
    _frame(axes, index, columns)
    axes.set_title("\n".join(filter(None, (title, _summary(index, blocks, kv_head)))), fontsize=10, loc="left")
    if handles:
        figure.legend(handles=handles, loc="outside lower left", fontsize=8, frameon=False)
    return figure


def blocks_of(level: Level, page_size: int, kv_head: int):
    """`(tokens, page, first slot, last slot + 1)` of each block of a level that holds a key."""
    pages = as_host_array(level.indices, "indices")
    pages = pages[kv_head] if level.per_head else pages
    for row in range(level.num_rows):
        tokens, keys = row_tokens(level, row), int(level.kv_len[row])
        if not len(tokens) or not keys:
            continue
        first = int(level.kv_offset[row])
        for entry in range(first // page_size, (first + keys - 1) // page_size + 1):
            begin, end = max(first, entry * page_size), min(first + keys, (entry + 1) * page_size)
            page = int(pages[int(level.page_begin[row]) + entry])
            yield tokens, page, begin - entry * page_size, end - entry * page_size


def _keys(block) -> int:
    return block[3] - block[2]


def _summary(index: ComposedIndex, blocks, kv_head: int) -> str:
    read = sum(_keys(block) for level in blocks for block in level)
    text = (
        f"{index.num_requests} requests, {index.num_tokens} query tokens, pages of {index.page_size}: {read} keys read"
    )
    if index.single is not None:
        alone = sum(_keys(b) for level in index.single.levels for b in blocks_of(level, index.page_size, kv_head))
        text += f", {alone} as a single level"
    return text


def _frame(axes: Any, index: ComposedIndex, columns: dict[int, int]) -> None:
    axes.set_xlim(0, max(1, len(columns)))
    axes.set_ylim(max(1, index.num_tokens), 0)
    starts = np.asarray(index.qo_indptr)
    for start in starts[1:-1]:
        axes.axhline(start, color="black", linewidth=0.5)
    filled = [request for request in range(index.num_requests) if starts[request + 1] > starts[request]]
    shown = filled[:: max(1, -(-len(filled) // _MOST_LABELS))]
    axes.set_yticks([(starts[request] + starts[request + 1]) / 2 for request in shown])
    axes.set_yticklabels([f"{r}: {starts[r + 1] - starts[r]} of {int(index.kv_len[r])}" for r in shown], fontsize=7)
    pages = list(columns)
    step = max(1, -(-len(pages) // _MOST_LABELS))
    axes.set_xticks([place + 0.5 for place in range(0, len(pages), step)])
    axes.set_xticklabels([str(page) for page in pages[::step]], fontsize=7)
    axes.set_xlabel("page, in the order of first use", fontsize=8)
    axes.set_ylabel("request: query tokens of keys", fontsize=8)
