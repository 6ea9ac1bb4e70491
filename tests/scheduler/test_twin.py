"""The C++ planner and its Python twin agree, item by item and merge by merge."""

from attnloom_scheduler import twin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_batches import Batch, inputs, plain
from random_batches import Case, cases, plain_batches

relaxed = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def agree(planner, case):
    given_inputs = inputs(case.batch, classes=case.classes, ranges=case.ranges, **case.settings)
    view = planner.plan(given_inputs)
    expected = twin.plan(given_inputs, case.batch, case.ranges)
    assert view.decode() == expected.plan
    for name in ("makespan", "busiest", "total", "num_tiles", "partitioner"):
        assert getattr(view, name) == getattr(expected, name), name
    assert view.num_items == len(expected.plan.items)
    assert view.num_merge == len(expected.plan.merges)
    assert view.num_part_rows == view.num_merge_parts == expected.plan.num_part_rows
    return view


@relaxed
@given(case=cases())
def test_equal_plans(planner, case):
    agree(planner, case)


@relaxed
@given(case=cases(plain_batches(), chunk=st.sampled_from([64, 128, 192])))
def test_equal_batch_invariant_plans(planner, case):
    agree(planner, case)


def test_equal_at_serving_size(planner):
    for qo_lens, kv_lens in (
        ([1] * 17, [4096] * 17),
        ([1] * 64, [8192 // (i + 1) for i in range(64)]),
        ([300, 1, 1, 70], [4096, 9000, 5, 70]),
    ):
        batch = plain(qo_lens, kv_lens)
        for heads, group in ((8, 4), (32, 1)):
            view = planner.plan(inputs(batch, num_kv_heads=heads, group=group))
            expected = twin.plan(inputs(batch, num_kv_heads=heads, group=group), batch)
            assert view.decode() == expected.plan
            assert view.makespan == expected.makespan


def test_both_partitioners_are_reached(planner):
    short = {"t_q": 16, "t_kv": 64, "alpha": 1000, "beta": 1}
    few = inputs(plain([1] * 4, [700, 600, 500, 400]), classes=(short,), num_workers=2, num_kv_heads=1)
    assert planner.plan(few).partitioner == "longest_first"
    assert planner.plan(inputs(plain([1] * 17, [4096] * 17))).partitioner == "contiguous_cut"


def test_even_pieces_are_not_cut(planner):
    short = {"t_q": 16, "t_kv": 64, "alpha": 2_000_000, "beta": 20_000}
    view = agree(planner, Case(plain([1] * 16, [1024] * 16), {"num_workers": 264}, (short,), None))
    assert view.partitioner == "longest_first" and view.num_items == 256
    uneven = agree(planner, Case(plain([1] * 16, [1024] * 15 + [3000]), {"num_workers": 264}, (short,), None))
    assert uneven.partitioner == "contiguous_cut"


def test_a_row_of_no_keys_among_the_keys_of_another_level(planner):
    nothing_shared = Batch([1, 1], [[([0], 1, 0), ([1], 40, 0)], [([0, 1], 0, 0)]])
    costs = {"t_q": 1, "t_kv": 1, "alpha": 1, "beta": 0, "row_beta": 1}
    settings = {"num_workers": 2, "num_kv_heads": 1, "group": 1, "merge_base": 0, "gamma": 0}
    plan = agree(planner, Case(nothing_shared, settings, (costs,), None)).decode()
    assert any(len(merge.parts) > 2 for merge in plan.merges)
