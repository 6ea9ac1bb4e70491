"""A variant that records what functors are given (on the host, one thread), to hold a chain to the functor contract."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnloom.variant import TensorParam, Variant


class Recorder:
    """Changes nothing."""

    def logits_transform(self, p, x, site):
        """The logit as it came."""
        return x

    def output_transform(self, p, x, site):
        """The row as it came."""
        return x


RECORDER = Variant(
    name="recorder",
    struct="attnloom::testing::Recorder",
    header="recorder.h",
    package="attnloom.testing",
    functors={"logits_transform", "output_transform"},
    params=[
        TensorParam("pairs", dtype="int32", shape=("*", "num_qo_heads", "*", "*", 3), doc="count, q_pos, kv_pos."),
        TensorParam("outputs", dtype="int32", shape=("*", "num_qo_heads", "*"), doc="count of each row's finalize."),
        TensorParam("strays", dtype="int32", shape=(1,), doc="set where an index was out of its request."),
    ],
    reference="attnloom.testing.recorder:Recorder",
    doc="Writes down every pair that a kernel asks about.",
)


def blank(spec, index) -> dict[str, Any]:
    """Empty records of a batch, as the recorder's parameters."""
    queries = int(np.diff(index.qo_indptr).max(initial=1))
    keys = int(index.kv_len.max(initial=1))
    heads, requests = spec.num_qo_heads, max(index.num_requests, 1)
    return {
        "recorder.pairs": np.zeros((requests, heads, max(queries, 1), max(keys, 1), 3), np.int32),
        "recorder.outputs": np.zeros((requests, heads, max(queries, 1)), np.int32),
        "recorder.strays": np.zeros(1, np.int32),
    }


def check_records(log: dict[str, Any], index, visible: np.ndarray) -> None:
    """Hold a record to the contract: every visible pair was given, with its true positions, and each row ended once.

    Args:
        visible: bool [heads, tokens, keys], the pairs that index, ranges and masks show.

    Raises:
        AssertionError: naming the request.
    """
    assert not log["recorder.strays"].any(), "a functor was given an index outside its request"
    dense = index.to_dense()
    for request, kv_len in enumerate(index.kv_len):
        tokens = slice(index.qo_indptr[request], index.qo_indptr[request + 1])
        qo_len = tokens.stop - tokens.start
        seen = log["recorder.pairs"][request, :, :qo_len, :kv_len]
        assert log["recorder.pairs"][request].sum() == seen.sum(), f"request {request}: a pair beyond its lengths"
        given = seen[..., 0] > 0
        missing = visible[:, tokens, :kv_len] & ~given
        assert not missing.any(), (
            f"request {request}: {missing.sum()} visible pair(s) were never given to a functor, the first at "
            f"[head, q_index, kv_index] {np.argwhere(missing)[0].tolist()}"
        )
        for place, fact in ((1, dense.q_pos[tokens, None]), (2, dense.kv_pos[tokens, :kv_len])):
            assert (seen[..., place] == fact)[given].all(), f"request {request}: a functor was given a wrong position"
        ends = log["recorder.outputs"][request, :, :qo_len]
        assert (ends == 1).all(), f"request {request}: output_transform must run once a row, not {np.unique(ends)}"
