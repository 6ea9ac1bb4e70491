"""Same lengths, same plan; and with `batch_invariant_chunk`, a request's chunks do not depend on its batch mates."""

import pytest
from attnloom.errors import PlanError
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_batches import SHORT, TALL, inputs, plain

lengths = st.tuples(st.integers(0, 70), st.integers(0, 3000))


def chunks_of(planner, pairs, request, **fields):
    """The (token in the request, head, key) boxes that a request was cut to, and how its parts merge."""
    qo_lens, kv_lens = zip(*pairs, strict=True)
    batch = plain(qo_lens, kv_lens)
    plan = planner.plan(inputs(batch, batch_invariant_chunk=256, **fields)).decode()
    first = int(batch.qo_indptr[request])
    return {
        (item.q_begin - first, item.q_tokens, head, item.kv_begin, item.kv_end, item.tile_class, item.is_partial)
        for item in plan.items
        if item.request == request
        for head in range(item.head0, item.head0 + item.heads)
    }


@settings(max_examples=40, deadline=None)
@given(
    mine=lengths,
    before=st.lists(lengths, max_size=6),
    after=st.lists(lengths, max_size=6),
    invariant_class=st.integers(0, 1),
    workers=st.sampled_from([1, 8, 132]),
)
def test_chunks_alone_and_in_a_batch(planner, mine, before, after, invariant_class, workers):
    alone = chunks_of(planner, [mine], 0, invariant_class=invariant_class)
    batch = [*before, mine, *after]
    fields = {"num_workers": workers, "invariant_class": invariant_class}
    assert chunks_of(planner, batch, len(before), **fields) == alone


def test_chunks_end_at_fixed_positions(planner):
    plan = planner.plan(inputs(plain([1, 1], [1000, 512]), batch_invariant_chunk=256)).decode()
    for item in plan.items:
        assert item.kv_begin % 256 == 0
        assert item.kv_end in (item.kv_begin + 256, item.row_kv_len)


def test_a_longer_request_keeps_its_earlier_chunks(planner):
    short = chunks_of(planner, [(1, 1024)], 0)
    long = chunks_of(planner, [(1, 1500)], 0)
    assert short <= long


def test_one_tile_class_whatever_the_lengths(planner):
    for chosen in (0, 1):
        plan = planner.plan(
            inputs(plain([1, 300], [9, 300]), batch_invariant_chunk=256, invariant_class=chosen)
        ).decode()
        assert {item.tile_class for item in plan.items} == {chosen}


def test_same_input_same_bytes(library, planner):
    from attnloom_scheduler import Planner

    given_inputs = inputs(plain([1, 5, 0, 90], [4000, 17, 3, 90]))
    first = planner.plan(given_inputs).to_bytes()
    for qo_len in (7, 8):
        planner.plan(inputs(plain([qo_len] * 40, [999] * 40)))
    assert planner.plan(given_inputs).to_bytes() == first
    assert Planner(library).plan(given_inputs).to_bytes() == first


def test_composed_index_is_refused(planner):
    from plan_batches import Batch

    composed = Batch([1, 1], [[([0, 1], 64, 0)], [([0], 10, 64), ([1], 20, 64)]])
    with pytest.raises(PlanError, match="levels of a batch-invariant plan is 2"):
        planner.plan(inputs(composed, batch_invariant_chunk=64))


def test_row_of_several_requests_is_refused(planner):
    from plan_batches import Batch

    mixed = Batch([1, 1], [[(2, 64, 0)]])
    with pytest.raises(PlanError, match="mixes requests"):
        planner.plan(inputs(mixed, batch_invariant_chunk=64))


def test_chunk_must_be_of_whole_key_tiles(planner):
    with pytest.raises(PlanError, match="batch_invariant_chunk 100 is not a multiple of t_kv 64"):
        planner.plan(inputs(plain([1], [10]), classes=(SHORT, TALL), batch_invariant_chunk=100))
