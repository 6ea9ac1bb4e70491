"""Empty batches and requests of every kind, input that cannot be planned, and what is left after it."""

import os

import pytest
from attnloom.errors import PlanError
from attnloom_scheduler import PlanInput, Planner, TileClass, address_of, include_dir, sources, twin
from plan_batches import SHORT, TALL, Batch, inputs, plain

INT_MAX = (1 << 31) - 1


@pytest.mark.parametrize(
    ("qo_lens", "kv_lens"),
    [
        ([], []),
        ([0], [0]),
        ([0], [100]),
        ([3], [0]),
        ([0, 0, 0], [5, 0, 7]),
        ([1, 0, 2], [0, 0, 0]),
        ([0, 40, 0, 1], [9, 40, 0, 0]),
    ],
)
@pytest.mark.parametrize("chunk", [0, 64])
def test_empties(planner, qo_lens, kv_lens, chunk):
    batch = plain(qo_lens, kv_lens)
    given = inputs(batch, batch_invariant_chunk=chunk)
    view = planner.plan(given)
    plan = view.decode()
    assert plan == twin.plan(given, batch).plan
    written = {token for item in plan.items for token in range(item.q_begin, item.q_begin + item.q_tokens)}
    assert written == set(range(sum(qo_lens)))
    assert view.num_part_rows == 0
    if not sum(qo_lens):
        assert view.num_items == 0
        assert view.partitioner == "nothing"


def test_no_levels_and_no_tokens(planner):
    assert planner.plan(inputs(Batch([], []))).num_items == 0


def test_rows_with_nothing_visible_are_written(planner):
    plan = planner.plan(inputs(plain([2, 1], [100, 100]), ranges=lambda *_: [])).decode()
    assert {item.kv_end - item.kv_begin for item in plan.items} == {0}
    assert {item.request for item in plan.items} == {0, 1}


def test_range_of_window_and_sink_is_one_item(planner):
    given = inputs(plain([1], [10_000]), num_workers=1, ranges=lambda *_: [(0, 4), (9_800, 10_000)])
    (item,) = planner.plan(given).decode().items
    assert (item.kv_begin, item.kv_end) == (0, 10_000)
    assert not item.is_partial
    full = planner.plan(inputs(plain([1], [10_000]), num_workers=1)).total
    assert planner.plan(given).total < full / 10


def test_ranges_reach_the_function_as_they_lie(planner):
    seen = []
    batch = Batch([1, 1, 40], [[([0, 1], 64, 0)], [([0], 10, 64), ([1], 20, 64), (list(range(2, 42)), 30, 0)]])
    planner.plan(inputs(batch, ranges=lambda *args: seen.append(args) or [(0, 5)]))
    assert seen == [(0, 0, 0, 2), (1, 0, 0, 1), (1, 1, 1, 1), (1, 2, 2, 32), (1, 2, 34, 8)]


@pytest.mark.parametrize("prefix_keys", [0, 128])
def test_parts_are_in_kv_order_whatever_the_order_of_levels(planner, prefix_keys):
    suffixes, prefixes = [([0], 512, prefix_keys), ([1], 64, prefix_keys)], [([0, 1], prefix_keys, 0)]
    for levels in ([suffixes, prefixes], [prefixes, suffixes]):
        batch = Batch([1, 1], levels)

        def last_key(level, row, _begin, _tokens, batch=batch):
            kv_len = int(batch.levels[level].kv_len[row])
            return [(kv_len - 1, kv_len)]

        given = inputs(batch, num_workers=1, num_kv_heads=1, ranges=last_key)
        plan = planner.plan(given).decode()
        assert plan == twin.plan(given, batch, last_key).plan
        starts = {item.part_row: item.kv_start + item.kv_begin for item in plan.items}
        merge = plan.merges[0]
        assert [starts[part] for part in merge.parts] == sorted(starts[part] for part in merge.parts)


def refused(planner, given, text):
    good = planner.plan(inputs(plain([1, 1], [300, 40])))
    before = good.to_bytes()
    for _ in range(3):
        with pytest.raises(PlanError, match=text):
            planner.plan(given)
    assert good.to_bytes() == before


def test_group_taller_than_every_tile(planner):
    refused(planner, inputs(plain([1], [1]), group=200), "group 200 is more than t_q 128")


def test_group_taller_than_the_short_tile_takes_the_tall_one(planner):
    plan = planner.plan(inputs(plain([1], [1]), group=20)).decode()
    assert {item.tile_class for item in plan.items} == {1}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_workers": 0}, "num_workers is 0, must be between 1 and 65535"),
        ({"num_workers": 70_000}, "num_workers is 70000"),
        ({"num_kv_heads": 70_000}, "num_kv_heads is 70000, must be between 1 and 65535"),
        ({"num_kv_heads": 65_000, "group": 65_000}, "query heads"),
        ({"gamma": -1}, "gamma is -1"),
        ({"classes": (TALL, SHORT)}, "tall tile's t_q 16 is less than the short tile's 128"),
        ({"classes": ()}, "num_classes is 0"),
        ({"classes": ({**SHORT, "alpha": 0},)}, "alpha is 0"),
        ({"classes": ({**SHORT, "t_kv": 0},)}, "t_kv is 0"),
        ({"classes": ({**SHORT, "beta": INT_MAX, "alpha": 1 << 40},), "num_kv_heads": 65_535}, "costs more than"),
        ({"batch_invariant_chunk": 64, "invariant_class": 2}, "invariant_class is 2"),
    ],
)
def test_settings_out_of_range(planner, fields, text):
    refused(planner, inputs(plain([1], [INT_MAX]), **fields), text)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (Batch([1], [[(1, -3, 0)]]), "kv_len -3"),
        (Batch([1], [[(1, 10, INT_MAX - 5)]]), "passes the largest ordinal"),
        (Batch([2], [[(1, 10, 0)]]), "block rows hold tokens 0 to 1, the batch has 2 tokens"),
        (Batch([1], [[(2, 10, 0)]]), "reaches token 2, the batch has 1 tokens"),
        (Batch([2], [[([0], 10, 0)]]), "token 1 is in no block row"),
        (Batch([2], [[([0, 2], 10, 0)]]), "names token 2, the batch has 2 tokens"),
        (Batch([2], [[([0, -1], 10, 0)]]), "names token -1"),
        (Batch([1], []), "no level for its 1 tokens"),
    ],
)
def test_malformed_index(planner, batch, text):
    refused(planner, inputs(batch), text)


def test_falling_indptr(planner):
    batch = plain([2, 2], [5, 5])
    batch.levels[0].row_indptr[1] = 5
    refused(planner, inputs(batch), "row_indptr of level 0")


@pytest.mark.parametrize("ranges", [lambda *_: [(0, 1)] * 3, lambda *_: [(200, 300), (0, 10)]])
def test_a_range_function_that_misbehaves(planner, ranges):
    refused(planner, inputs(plain([1], [1000]), ranges=ranges), "range function returned")


def test_too_many_chunks(planner):
    tiny = {**SHORT, "t_kv": 1}
    given = inputs(plain([1], [INT_MAX]), classes=(tiny,), batch_invariant_chunk=1)
    refused(planner, given, "more than 4194304 tiles")


def test_longest_row_there_can_be(planner):
    view = planner.plan(inputs(plain([1], [INT_MAX])))
    assert max(item.kv_end for item in view.decode().items) == INT_MAX


def test_a_wrong_abi(planner):
    given = inputs(plain([1], [1]))
    given.abi = 99
    refused(planner, given, "PlanInput.abi is 99")


def test_an_outgrown_view_says_so(planner):
    old = planner.plan(inputs(plain([1], [1])))
    planner.plan(inputs(plain([1], [2])))
    old.to_bytes()
    planner.plan(inputs(plain([1], [3])))
    with pytest.raises(PlanError, match="2 newer plans"):
        old.to_bytes()


def test_memory_is_reused(planner):
    given = inputs(plain([1, 300], [5000, 300]))
    assert len({planner.plan(given).address for _ in range(10)}) == 2


def test_a_planner_does_not_pickle(planner):
    import pickle

    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(planner)


def test_a_forked_child_plans(planner):
    given = inputs(plain([1, 60], [5000, 60]))
    expected = planner.plan(given).decode()
    child = os.fork()
    if child == 0:
        os._exit(0 if planner.plan(given).decode() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_addresses_of_any_array():
    import numpy as np

    array = np.arange(5, dtype=np.int32)
    assert address_of(array) == array.ctypes.data
    array.flags.writeable = False
    assert address_of(array) == array.ctypes.data
    assert isinstance(address_of(np.zeros(0, np.int32)), int)


def test_what_a_builder_needs_is_there():
    assert (include_dir() / "attnloom" / "scheduler.h").is_file()
    assert {path.suffix for path in sources()} == {".cpp"}


def test_costs_grow_with_rows():
    from attnloom_scheduler.costs import TABLE, merge_row, tile_class

    for costs in TABLE.values():
        short = tile_class(costs, 16, 64, rows=4, head_dim=128, head_dim_v=128, kv_itemsize=2)
        tall = tile_class(costs, 128, 64, rows=128, head_dim=128, head_dim_v=128, kv_itemsize=2)
        assert isinstance(short, TileClass)
        assert tall.beta >= short.beta >= 1
        assert merge_row(costs, 128) >= 1
    assert PlanInput(classes=[short, tall]).num_classes == 2


def test_a_library_of_another_abi_is_refused(library, monkeypatch):
    import ctypes

    from attnloom_scheduler import planner as module

    class Longer(ctypes.Structure):
        _fields_ = (("more", ctypes.c_int64 * 100),)

    monkeypatch.setattr(module, "PlanInput", Longer)
    with pytest.raises(PlanError, match="rebuild the library"):
        Planner(library)
