"""How even the work is, in predicted cost."""

import numpy as np
import pytest
from attnloom_scheduler.inputs import ITEM_READ_ONCE
from plan_batches import TALL, inputs, plain

WORKERS = 132


def max_over_mean(view) -> float:
    return view.busiest * WORKERS / view.total


@pytest.mark.parametrize("heads", [2, 4, 8])
@pytest.mark.parametrize("kv_len", [4096, 10_000, 32_768])
def test_seventeen_equal_requests(planner, heads, kv_len):
    view = planner.plan(inputs(plain([1] * 17, [kv_len] * 17), num_kv_heads=heads))
    assert view.num_items >= WORKERS
    assert max_over_mean(view) <= 1.10


@pytest.mark.parametrize("num_requests", [64, 256, 1024])
@pytest.mark.parametrize(("heads", "group"), [(8, 4), (32, 1)])
def test_serving_lengths(planner, num_requests, heads, group):
    lengths = np.random.default_rng(num_requests).integers(1, 8192, num_requests)
    view = planner.plan(inputs(plain([1] * num_requests, lengths), num_kv_heads=heads, group=group))
    assert max_over_mean(view) <= 1.02


def test_one_long_among_short(planner):
    view = planner.plan(inputs(plain([1] * 33, [131_072] + [64] * 32)))
    assert max_over_mean(view) <= 1.10


def test_prefill(planner):
    view = planner.plan(inputs(plain([2048] * 8, [2048] * 8)))
    assert view.partitioner == "longest_first"
    assert view.num_part_rows == 0
    assert max_over_mean(view) <= 1.05


def test_no_slivers(planner):
    """A piece that was split off is worth at least the cost of starting an item."""
    given = inputs(plain([1] * 9, [5000 + 100 * i for i in range(9)]))
    for item in planner.plan(given).decode().items:
        if item.is_partial:
            tile_class = given.classes[item.tile_class]
            least = -(-tile_class.alpha // (tile_class.beta * tile_class.t_kv)) * tile_class.t_kv
            assert item.kv_end - item.kv_begin >= least - tile_class.t_kv


def test_causal_is_counted_by_its_range(planner):
    """Tiles further down a causal prefill see more keys, and cost more."""
    batch = plain([4096], [4096])

    def causal(_level, _row, q_begin, q_tokens):
        return [(0, q_begin + q_tokens)]

    full, half = planner.plan(inputs(batch)).total, planner.plan(inputs(batch, ranges=causal)).total
    assert half == pytest.approx(full / 2, rel=0.05)


def test_prefill_runs_head_groups_one_after_the_other(planner):
    """K and V of two heads fit half the cache: a worker never returns to heads it has left."""
    per_head = 4096 * 512
    given = inputs(plain([4096], [4096]), classes=(TALL,), num_workers=4, cache_bytes=4 * per_head)
    for queue in planner.plan(given).decode().queues:
        groups = [item.head0 // 2 for item in queue]
        assert groups == sorted(groups)
        assert set(groups) == {0, 1, 2, 3}


def test_longest_first_within_a_head_group(planner):
    def causal(_level, _row, q_begin, q_tokens):
        return [(0, q_begin + q_tokens)]

    view = planner.plan(inputs(plain([4096], [4096]), classes=(TALL,), num_workers=4, num_kv_heads=1, ranges=causal))
    for queue in view.decode().queues:
        lengths = [item.kv_end for item in queue]
        assert lengths == sorted(lengths, reverse=True)


def decode(kv_lens, sharers=2):
    """Decode of 8 kv heads on a GPU of 132 processors, two workers each, of which `sharers` share what one can read."""
    batch = plain([1] * len(kv_lens), kv_lens)
    return inputs(batch, num_workers=2 * WORKERS, workers_per_processor=sharers)


@pytest.mark.parametrize(("kv_lens", "pieces"), [([1024] * 16, 1), ([32_768], 16)])
def test_pieces_that_fill_the_processors_are_not_cut_for_workers(planner, kv_lens, pieces):
    view = planner.plan(decode(kv_lens))
    queues = view.decode().queues
    assert view.num_items == 128 == sum(map(len, queues)) and max(map(len, queues)) == 1
    assert {len(merge.parts) for merge in view.decode().merges} <= {pieces}
    cut_for_workers = planner.plan(decode(kv_lens, sharers=1))
    assert cut_for_workers.num_items == 256
    assert view.makespan < cut_for_workers.makespan


def test_decode_leaves_equal_rows_whole_where_that_is_nearly_even(planner):
    view = planner.plan(decode([4096] * 64))
    assert (view.partitioner, view.num_items, view.num_merge) == ("longest_first", 64 * 4, 0)
    assert view.busiest * 2 * WORKERS / view.total <= 1.04


@pytest.mark.parametrize("spread", [32, 1000])
def test_processors_read_as_many_keys_as_each_other_where_lengths_differ(planner, spread):
    lengths = np.random.default_rng(spread).integers(4096 - spread, 4096, 64)
    keys = np.zeros(2 * WORKERS)
    for worker, queue in enumerate(planner.plan(decode(lengths)).decode().queues):
        keys[worker] = sum(item.heads * (item.kv_end - item.kv_begin) for item in queue)
    assert keys.max() / keys.mean() <= 1.03
    processors = keys[:WORKERS] + keys[WORKERS:]
    assert processors.max() / processors.mean() <= 1.02


@pytest.mark.parametrize(
    ("qo_lens", "kv_lens", "sharers", "once"),
    [
        ([1] * 16, [1024] * 16, 2, True),
        ([1] * 64, [1200] * 64, 2, True),
        ([1] * 64, [1300] * 64, 2, False),  # more than six times the cache
        ([40] * 2, [1024] * 2, 2, False),  # several tiles of rows read the same keys
        ([1] * 16, [1024] * 16, 1, False),  # so may requests
    ],
)
def test_items_of_small_decodes_are_marked_as_read_once(planner, qo_lens, kv_lens, sharers, once):
    items = planner.plan(inputs(plain(qo_lens, kv_lens), workers_per_processor=sharers)).decode().items
    assert {bool(item.flags & ITEM_READ_ONCE) for item in items} == {once}
