"""What every plan must hold: each visible key once, partials that meet in one merge, an exact and bounded workspace."""

from collections import Counter, defaultdict
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_batches import inputs
from random_batches import cases, plain_batches

relaxed = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
invariant = cases(plain_batches(), chunk=st.just(64))


def planned(planner, case):
    return planner.plan(inputs(case.batch, classes=case.classes, ranges=case.ranges, **case.settings)).decode()


def tokens_of(case, item):
    return case.batch.tokens(item.level, item.q_begin, item.q_tokens)


@relaxed
@given(case=st.one_of(cases(), invariant))
def test_every_visible_key_once(planner, case):
    plan = planned(planner, case)
    chunks = defaultdict(list)
    for item in plan.items:
        for head in range(item.head0, item.head0 + item.heads):
            chunks[item.level, item.q_begin, item.q_tokens, head].append(item)
    seen_tokens = Counter()
    for (level, q_begin, q_tokens, head), items in chunks.items():
        items.sort(key=lambda item: item.kv_begin)
        for before, after in pairwise(items):
            assert before.kv_end <= after.kv_begin
        for item in items:
            t_kv = plan.t_kv[item.tile_class]
            assert item.kv_begin % t_kv == 0
            assert item.kv_end % t_kv == 0 or item.kv_end == item.row_kv_len
            assert 0 <= item.kv_begin <= item.kv_end <= item.row_kv_len
        covered = [key for item in items for key in range(item.kv_begin, item.kv_end)]
        visible = {
            k for low, high in case.visible(level, items[0].level_row, q_begin, q_tokens) for k in range(low, high)
        }
        assert visible <= set(covered)
        if not visible:
            assert len(items) == 1 and not covered
        for token in case.batch.tokens(level, q_begin, q_tokens):
            seen_tokens[token, head, level] += 1
    heads = case.settings["num_kv_heads"]
    assert set(seen_tokens.values()) <= {1}
    assert {(token, head) for token, head, _ in seen_tokens} == {
        (token, head) for token in range(case.batch.num_tokens) for head in range(heads)
    }


@relaxed
@given(case=cases())
def test_items_as_an_array(planner, case):
    view = planner.plan(inputs(case.batch, classes=case.classes, ranges=case.ranges, **case.settings))
    array, items = view.items(), view.decode().items
    named = [tuple(getattr(item, name) for name in array.dtype.names) for item in items]
    assert sorted(map(tuple, array.tolist())) == sorted(named)


@relaxed
@given(case=st.one_of(cases(), invariant))
def test_items_describe_their_rows(planner, case):
    for item in planned(planner, case).items:
        level = case.batch.levels[item.level]
        row = item.level_row
        assert item.page_begin == level.page_begin[row]
        assert item.kv_start == level.kv_start[row]
        assert item.kv_offset == level.kv_offset[row]
        assert item.row_kv_len == level.kv_len[row]
        assert item.q_begin == level.row_indptr[row] + item.row_tokens_before
        assert item.q_begin + item.q_tokens <= level.row_indptr[row + 1]
        requests = {case.batch.token_request[token] for token in tokens_of(case, item)}
        assert item.request == (requests.pop() if len(requests) == 1 else -1)
        assert item.q_tokens * case.settings["group"] <= case.classes[item.tile_class]["t_q"]
        assert item.is_whole_row == (item.kv_begin == 0 and item.kv_end == item.row_kv_len)


@relaxed
@given(case=st.one_of(cases(), invariant))
def test_partials_meet_in_one_merge(planner, case):
    plan = planned(planner, case)
    group = case.settings["group"]
    owner, writers = {}, Counter()
    for item in plan.items:
        for h in range(item.heads):
            for r in range(item.q_tokens * group):
                token = tokens_of(case, item)[r // group]
                head = (item.head0 + h) * group + r % group
                writers[token, head] += not item.is_partial
                if item.is_partial:
                    part = item.part_row + h * item.q_tokens * group + r
                    assert part not in owner
                    owner[part] = (token, head, item.kv_start + item.kv_begin)
        assert (item.part_row >= 0) == item.is_partial == (item.merge_id >= 0)
        if item.is_partial:
            merge = plan.merges[item.merge_id]
            assert (merge.token, merge.head) == (tokens_of(case, item)[0], item.head0 * group)
    assert sorted(owner) == list(range(plan.num_part_rows))
    merged = [part for merge in plan.merges for part in merge.parts]
    assert sorted(merged) == sorted(owner)
    for merge in plan.merges:
        assert merge.parts
        assert writers[merge.token, merge.head] == 0
        assert all(owner[part][:2] == (merge.token, merge.head) for part in merge.parts)
        starts = [owner[part][2] for part in merge.parts]
        assert starts == sorted(starts)
    rows = {(merge.token, merge.head) for merge in plan.merges}
    assert len(rows) == len(plan.merges)
    assert sorted(rows) == [(merge.token, merge.head) for merge in plan.merges]
    assert all(count == 1 for row, count in writers.items() if row not in rows)


@relaxed
@given(case=st.one_of(cases(), invariant))
def test_whole_heads_that_are_cut_for_a_worker_are_one_item(planner, case):
    view = planner.plan(inputs(case.batch, classes=case.classes, ranges=case.ranges, **case.settings))
    if view.partitioner != "contiguous_cut":
        return
    for queue in view.decode().queues:
        for before, after in pairwise(queue):
            same_tile = (before.level, before.q_begin, before.kv_begin) == (after.level, after.q_begin, after.kv_begin)
            assert not same_tile or before.is_partial or after.is_partial


@relaxed
@given(case=cases())
def test_workspace_is_bounded(planner, case):
    plan = planned(planner, case)
    heads = case.settings["num_kv_heads"] * case.settings["group"]
    bound = 2 * case.settings["num_workers"] * max(c["t_q"] for c in case.classes)
    levels = case.batch.levels
    if len(levels) > 1:
        bound += len(levels) * case.batch.num_tokens * heads
    assert plan.num_part_rows <= bound
