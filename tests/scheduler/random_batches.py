"""Random batches for the scheduler's properties: plain and composed, with every kind of empty, ranges and settings."""

from __future__ import annotations

from attrs import frozen
from hypothesis import strategies as st
from plan_batches import Batch, plain


@frozen
class Case:
    """A batch, its settings, and the ranges its rows see (none: all keys)."""

    batch: Batch
    settings: dict
    classes: tuple[dict, ...]
    ranges: object

    def visible(self, level: int, row: int, q_begin: int, q_tokens: int) -> list[tuple[int, int]]:
        """Row ordinals that the tokens see, before any rounding."""
        kv_len = int(self.batch.levels[level].kv_len[row])
        intervals = [(0, kv_len)] if self.ranges is None else self.ranges(level, row, q_begin, q_tokens)
        return [(max(low, 0), min(high, kv_len)) for low, high in intervals if max(low, 0) < min(high, kv_len)]


def _window(batch: Batch, left: int, sink: int):
    """Causal, the last `left` keys and the first `sink` ones, for the tile's end rows; ordinals of the row."""

    def ranges(level, row, q_begin, q_tokens):
        kv_len = int(batch.levels[level].kv_len[row])
        end = int(batch.levels[level].row_indptr[row + 1])
        last = kv_len - (end - q_begin - q_tokens)
        first = kv_len - (end - q_begin - 1)
        window = (max(first - left, 0), last)
        return [window] if window[0] <= sink else [(0, sink), window]

    return ranges


@st.composite
def _lengths(draw, max_requests=7):
    qo = st.one_of(st.just(1), st.integers(0, 3), st.integers(0, 90))
    kv = st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 700), st.just(512))
    pairs = draw(st.lists(st.tuples(qo, kv), max_size=max_requests))
    return [q for q, _ in pairs], [k for _, k in pairs]


@st.composite
def plain_batches(draw):
    """One level, one row a request."""
    return plain(*draw(_lengths()))


@st.composite
def composed_batches(draw):
    """Groups of requests that share a prefix: a level of prefixes, one of suffixes, in either order."""
    qo_lens, kv_lens = draw(_lengths())
    starts = [sum(qo_lens[:i]) for i in range(len(qo_lens))]
    tokens = [list(range(s, s + q)) for s, q in zip(starts, qo_lens, strict=True)]
    owners = draw(st.lists(st.integers(0, 2), min_size=len(qo_lens), max_size=len(qo_lens)))
    lengths = draw(st.lists(st.integers(0, 400), min_size=3, max_size=3))
    prefixes = []
    for group in range(2):  # the requests of group 2 share nothing
        members = [t for owner, ts in zip(owners, tokens, strict=True) if owner == group for t in ts]
        prefixes.append((members, lengths[group], 0))
    prefix_of = [lengths[owner] if owner < 2 else 0 for owner in owners]
    listed = draw(st.booleans())
    suffixes = [
        (ts if listed else len(ts), kv, start) for ts, kv, start in zip(tokens, kv_lens, prefix_of, strict=True)
    ]
    levels = [prefixes, suffixes]
    return Batch(qo_lens, levels[::-1] if draw(st.booleans()) else levels)


@st.composite
def _classes(draw, group):
    t_q = draw(st.sampled_from([group, 2 * group, 16 * group]))
    cost = st.sampled_from([0, 1, 3, 1000])
    short = {"t_q": t_q, "t_kv": draw(st.sampled_from([1, 16, 64])), "alpha": draw(st.sampled_from([1, 50, 5000]))}
    tall = {**short, "t_q": t_q * draw(st.sampled_from([1, 2, 4])), "t_kv": draw(st.sampled_from([16, 64]))}
    classes = [{**short, "beta": draw(cost), "row_beta": draw(cost)}, {**tall, "beta": draw(cost)}]
    return tuple(classes[: draw(st.integers(1, 2))])


@st.composite
def cases(draw, batches=None, chunk=None):
    """A batch with settings; `chunk` draws `batch_invariant_chunk`."""
    batch = draw(st.one_of(plain_batches(), composed_batches()) if batches is None else batches)
    group = draw(st.sampled_from([1, 2, 3, 4, 7, 8]))
    classes = draw(_classes(group))
    workers = draw(st.sampled_from([1, 2, 3, 8, 19]))
    settings = {
        "num_workers": workers,
        "workers_per_processor": draw(st.integers(0, min(workers, 3))),
        "num_kv_heads": draw(st.sampled_from([1, 2, 5, 8])),
        "group": group,
        "merge_base": draw(st.sampled_from([0, 4000])),
        "gamma": draw(st.sampled_from([0, 7])),
        "cache_bytes": draw(st.sampled_from([0, 4096, 1 << 20])),
        "kv_bytes_per_key": 64,
        "batch_invariant_chunk": 0 if chunk is None else draw(chunk),
        "invariant_class": draw(st.integers(0, len(classes) - 1)),
    }
    kind = draw(st.sampled_from(["all", "causal", "window", "nothing"]))
    ranges = {
        "all": None,
        "causal": _window(batch, 1 << 20, 0),
        "window": _window(batch, draw(st.integers(1, 200)), draw(st.integers(0, 5))),
        "nothing": lambda *_: [],
    }[kind]
    return Case(batch, settings, classes, ranges)
