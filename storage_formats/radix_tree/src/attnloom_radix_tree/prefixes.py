"""Shared prefixes of a batch, found from equal leading pages in its block table, and the ones worth a level."""

from __future__ import annotations

import numpy as np
from attrs import define

MAX_DEPTH = 16
"""Nested prefixes that are looked for; deeper sharing stays unshared."""

TOKEN_COST = 8
"""What a query token in one more level costs, in keys: its partial result is written, read and merged."""


@define(eq=False)
class Prefix:
    """Pages that some requests share, beyond those of `parent`, which shares fewer pages among more requests.

    Attributes:
        requests: i64[n], ascending.
        end: leading pages that all of them share.
        tokens: query tokens of all of them.
        parent: place of the enclosing prefix in the list, -1 for none.
        begin: first page to read at this level: the end of the nearest enclosing prefix that is kept.
        depth: kept prefixes from the outermost to this one.
        kept: whether it is worth a level.
    """

    requests: np.ndarray
    end: int
    tokens: int
    parent: int
    begin: int = 0
    depth: int = 0
    kept: bool = False

    def gain(self, begin: int, page_size: int) -> int:
        """Keys saved by reading pages `[begin, end)` once, less what the level costs."""
        return (self.end - begin) * page_size * (len(self.requests) - 1) - TOKEN_COST * self.tokens


def find_prefixes(table, pages, qo_len) -> list[Prefix]:
    """All prefixes that two or more requests share, the enclosing ones first.

    Args:
        table: int[B, W] page ids on the host.
        pages: i64[B] leading pages of each request that may be shared (whole ones), at most W.
        qo_len: i32[B]; requests without query tokens are left out.
    """
    prefixes: list[Prefix] = []
    requests = np.flatnonzero((pages > 0) & (qo_len > 0))
    parent = np.full(len(requests), -1)
    end = np.zeros(len(requests), np.int64)
    for _ in range(MAX_DEPTH):
        requests, starts, parent = _groups(table, requests, end, parent)
        if not len(starts):
            break
        stops = np.append(starts[1:], len(requests))
        ends = _common_pages(table, pages, requests, starts, stops - starts, int(end.min()))
        tokens = np.add.reduceat(qo_len[requests], starts, dtype=np.int64)
        first = len(prefixes)
        columns = zip(*(each.tolist() for each in (starts, stops, ends, tokens, parent[starts])), strict=True)
        prefixes += [Prefix(requests[at:stop], shared, count, up) for at, stop, shared, count, up in columns]
        parent = np.repeat(np.arange(first, len(prefixes)), stops - starts)
        end = np.repeat(ends, stops - starts)
        longer = pages[requests] > end
        requests, parent, end = requests[longer], parent[longer], end[longer]
    return prefixes


def keep_prefixes(prefixes: list[Prefix], page_size: int, max_levels: int) -> list[Prefix]:
    """Those worth a level, with `begin` and `depth` set: where the keys that it saves reading exceed what it costs.

    A prefix is kept if `keys * (requests - 1) >= TOKEN_COST * tokens`, of the keys that no kept enclosing prefix holds.
    Where more than `max_levels` would be nested, the nest with the largest total gain is kept.
    """
    for prefix in prefixes:
        _place(prefix, prefixes)
        prefix.kept = prefix.gain(prefix.begin, page_size) >= 0
        prefix.depth += prefix.kept
    if max((prefix.depth for prefix in prefixes), default=0) > max_levels:
        best = _best_nest(prefixes, page_size, max_levels)
        for at, prefix in enumerate(prefixes):
            _place(prefix, prefixes)
            prefix.kept = best(at, prefix.begin, max_levels - prefix.depth)[1]
            prefix.depth += prefix.kept
    return [prefix for prefix in prefixes if prefix.kept]


def _groups(table, requests, column, parent):
    """Groups requests that have one parent and equal pages at their `column`; singles are dropped.

    Returns:
        `(requests, starts, parent)`: the requests group by group, where each group starts, the parent of each request.
    """
    page = table[requests, column]
    order = np.lexsort((page, parent))
    requests, parent, page = requests[order], parent[order], page[order]
    new = np.ones(len(requests) + 1, bool)
    new[1:-1] = (page[1:] != page[:-1]) | (parent[1:] != parent[:-1])
    shared = ~(new[:-1] & new[1:])
    requests, parent, new = requests[shared], parent[shared], new[:-1][shared]
    return requests, np.flatnonzero(new), parent


def _common_pages(table, pages, requests, starts, sizes, column: int):
    """i64[G]: leading pages that all requests of each group share, which are more than `column`.

    Looks at a few columns first and at ever more where they are equal.
    """
    most = np.minimum.reduceat(pages[requests], starts)
    common, width = most.copy(), 8
    alike = np.repeat(requests[starts], sizes)
    while True:
        differs = table[requests, column : column + width] != table[alike, column : column + width]
        differs = np.logical_or.reduceat(differs, starts, axis=0)
        first = differs.argmax(axis=1)
        found = differs[np.arange(len(starts)), first]
        np.minimum(common, column + first, out=common, where=found)
        column, width = column + width, 2 * width
        going_on = ~found & (most > column)
        if not going_on.any():
            return common
        if not going_on.all():
            still = np.repeat(going_on, sizes)
            rest = np.cumsum(sizes[going_on])
            common[going_on] = _common_pages(
                table, pages, requests[still], rest - sizes[going_on], sizes[going_on], column
            )
            return common


def _place(prefix: Prefix, prefixes: list[Prefix]) -> None:
    """Sets `begin` and `depth` by what is kept around `prefix`."""
    if prefix.parent >= 0:
        parent = prefixes[prefix.parent]
        prefix.begin = parent.end if parent.kept else parent.begin
        prefix.depth = parent.depth
    else:
        prefix.begin = prefix.depth = 0


def _best_nest(prefixes: list[Prefix], page_size: int, max_levels: int):
    """`best(at, begin, levels) -> (gain, keep)`: the most that prefix `at` and those inside it can save."""
    inside: list[list[int]] = [[] for _ in prefixes]
    for at, prefix in enumerate(prefixes):
        if prefix.parent >= 0:
            inside[prefix.parent].append(at)
    known: dict[tuple[int, int, int], tuple[int, bool]] = {}

    def best(at: int, begin: int, levels: int) -> tuple[int, bool]:
        if (key := (at, begin, levels)) not in known:
            left_out = sum(best(child, begin, levels)[0] for child in inside[at])
            gain = prefixes[at].gain(begin, page_size) if levels else -1
            if gain >= 0:
                gain += sum(best(child, prefixes[at].end, levels - 1)[0] for child in inside[at])
            known[key] = (gain, True) if gain >= 0 and gain >= left_out else (left_out, False)
        return known[key]

    return best
