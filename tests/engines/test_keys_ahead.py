"""When a CUDA engine lets a kernel transform keys ahead, and what it says where a captured graph cannot follow."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import attnloom
import numpy as np
import pytest
from attnloom.engines.cuda import CudaEngine, _Captured
from attnloom.engines.host import HostEngine
from attnloom.engines.keys_ahead import KeysAhead, can_go_ahead, keys_ahead_of
from attnloom.errors import PlanError
from attnloom.kernel import describe
from attnloom.limits import Limits
from attnloom.planned import Binding, Planned
from attnloom.targets import HOST, CudaTarget
from attnloom.workspace import Workspace

HEADS = {"num_qo_heads": 4, "num_kv_heads": 2}


LEVEL_ROWS = 2 * 3 * 16
KEY, PART_ROW = 2 * 64 * 4, 66 * 4


@pytest.fixture(scope="module")
def planned():
    return make_planned()


def make_planned(keeps_addresses=False):
    spec = attnloom.AttentionSpec(["rope", "causal"], head_dim=64, dtype="float32", tile=attnloom.Tile(16, 16), **HEADS)
    engine = HostEngine(HOST, spec, Limits(), num_threads=1, num_workers=3)
    engine.keeps_addresses = keeps_addresses
    made = Planned(spec, engine)
    made.bind(Binding(spec, engine).bind(None))
    return made


def paged(requests, page_size=4):
    counts = [-(-kv // page_size) for _, kv in requests]
    table = np.full((len(requests), max(counts)), -1, np.int32)
    for row, count in enumerate(counts):
        table[row, :count] = range(row * 1000, row * 1000 + count)
    qo_lens, kv_lens = zip(*requests, strict=True)
    return attnloom.storage_format("page_table").build_index(qo_lens, kv_lens, page_size, block_tables=table)


def engine_of(spec, captured=None, *, always=False):
    engine = CudaEngine.__new__(CudaEngine)
    engine._spec, engine._captured, engine._always_ahead = spec, captured, always
    engine._part_rows_of_a_level, engine._row_bytes = LEVEL_ROWS, PART_ROW
    return engine


@pytest.mark.parametrize(
    "requests, worth_it",
    [
        ([(200, 200)], True),
        ([(1, 200)] * 8, False),
        ([(200, 200), *[(1, 600)] * 8], False),
        ([(200, 200), *[(1, 100)] * 8], True),
        ([(400, 0)], False),
        ([], False),
    ],
)
def test_loads_decide(planned, requests, worth_it):
    planned.plan(paged(requests) if requests else attnloom.storage_format("dense").build_index([], []))
    ahead = keys_ahead_of(planned, planned._spec)
    assert (ahead is not None) == worth_it


def test_decodes_are_not_looked_at(planned, monkeypatch):
    planned.plan(paged([(1, 200)] * 8))
    monkeypatch.setattr(KeysAhead, "__init__", lambda *_: pytest.fail("the items of a decode were looked at"))
    assert keys_ahead_of(planned, planned._spec) is None


def test_what_a_plan_says(planned):
    planned.plan(paged([(40, 300), (0, 9), (7, 0), (200, 333)]))
    ahead = KeysAhead(planned)
    items = planned.view.decode().items
    assert ahead.loads == sum(item.heads * (item.kv_end - item.kv_begin) for item in items)
    assert ahead.rows.tolist() == [(0, 0, 300, 0), (24, 0, 0, 0), (24, 0, 0, 2), (24, 0, 333, 3), (48, 0, 0, 0)]
    assert ahead.slots == 48 * 16
    before = planned.workspace_bytes
    planned.transform_ahead(ahead)
    assert planned.workspace_bytes == before + planned.keys_bytes == before + ahead.slots * 2 * 64 * 4
    assert planned.args.index.num_ahead == 4
    workspace = SimpleNamespace(address=1 << 20, nbytes=planned.workspace_bytes)
    planned.point_to(workspace, planned.bound, (planned.args.k_scale, planned.args.v_scale))
    assert planned.args.keys_ahead == 1 << 20 and planned.args.partial_o == (1 << 20) + planned.keys_bytes
    planned.plan(paged([(1, 300)]))
    assert planned.keys_bytes == 0 and not planned.args.index.ahead
    planned.point_to(workspace, planned.bound, (planned.args.k_scale, planned.args.v_scale))
    assert planned.args.keys_ahead is None and planned.args.partial_o == 1 << 20


def test_lengths_that_the_device_reads(planned):
    planned.plan(paged([(200, 200)]))
    engine_of(planned._spec)._go_ahead(planned, kv_lens=object())
    assert planned.keys_bytes == 0
    engine_of(planned._spec)._go_ahead(planned, kv_lens=None)
    assert planned.keys_bytes > 0


@pytest.mark.parametrize("kv_lens", [None, object()], ids=["planned", "read"])
def test_a_kernel_that_transforms_none_itself(planned, kv_lens):
    planned.plan(paged([(1, 300)]))
    engine_of(planned._spec, always=True)._go_ahead(planned, kv_lens)
    assert planned.keys_bytes > 0


def test_a_graph_without_it_stays_so(planned):
    planned.plan(paged([(200, 200)]))
    engine_of(planned._spec, _Captured(200, 10**6, b"", False, 0))._go_ahead(planned, None)
    assert planned.keys_bytes == 0


def test_a_graph_with_it_stays_so(planned):
    engine = engine_of(planned._spec, _Captured(200, 10**6, b"", False, 256 * KEY))
    planned.plan(paged([(1, 100)]))
    engine._go_ahead(planned, None)
    assert planned.keys_bytes == 128 * KEY and planned.args.index.num_ahead == 1
    assert planned.reserved_bytes == planned.workspace_bytes + 128 * KEY
    planned.plan(paged([(1, 100)] * 3))
    with pytest.raises(
        PlanError,
        match=f"{384 * KEY} bytes of keys to transform ahead, .* captured room for {256 * KEY}, .* "
        f"or call wrapper.workspace.reserve.{384 * KEY + LEVEL_ROWS * PART_ROW}.; or declare the wrapper's maxima",
    ):
        engine._go_ahead(planned, None)


SMALL, LARGE = [(200, 200), (100, 130)], [(200, 900), (256, 256), (190, 200)]


@pytest.mark.parametrize("always", [True, False], ids=["long", "usual"])
@pytest.mark.parametrize("before", ["planned", "reserved", "planned, then reserved", "nothing"])
def test_a_graph_serves_what_was_planned_or_reserved_before(before, always):
    planned, workspace = make_planned(keeps_addresses=True), Workspace()
    engine = engine_of(planned._spec, always=always)
    engine._upload = SimpleNamespace(captured=False)
    engine._workspace = workspace

    def run(requests):
        planned.plan(paged(requests))
        engine._go_ahead(planned, None)
        workspace.reserve(planned.reserved_bytes)
        point()

    def point():
        planned.point_to(workspace, planned.bound, (planned.args.k_scale, planned.args.v_scale))
        args = planned.args
        assert args.partial_o >= args.keys_ahead + planned.keys_bytes and args.partial_o % 16 == 0
        rows = (args.partial_md - args.partial_o) // (PART_ROW - 8)
        assert max(planned.view.num_part_rows, LEVEL_ROWS) <= rows
        assert args.partial_o + rows * PART_ROW <= workspace.address + workspace.nbytes
        return args.keys_ahead, args.partial_o

    if before == "planned":
        run(LARGE)
    needed = (1024 + 2 * 256) * KEY + LEVEL_ROWS * PART_ROW
    if before == "reserved":
        workspace.reserve(needed)
    run(SMALL)
    if before == "planned, then reserved":
        workspace.reserve(needed)
    captured = point()
    engine._note_capture(planned, *[SimpleNamespace(shape=[500])] * 3, None)
    for requests in (SMALL, [(1, 100)] * 3):
        run(requests)
        assert point() == captured
    if before != "nothing":
        run(LARGE)
        assert point() == captured
        return
    with pytest.raises(PlanError, match=f"reserve.{needed}."):
        run(LARGE)
    assert workspace.nbytes < needed


def test_kernels_that_can():
    target = CudaTarget("sm_90a")
    changes = ({}, {"variants": ["causal"]}, {"kv_dtype": "float8_e4m3fn"}, {"tile": attnloom.Tile(64, 64, "mma")})
    found = []
    for change, max_qo_len in itertools.product(changes, (None, 1)):
        fields = {"variants": ["rope", "causal"], "head_dim": 128, "dtype": "bfloat16", **HEADS, **change}
        spec = attnloom.AttentionSpec(**fields)
        composition, tiles, _ = describe(spec, target, Limits(qo_len=max_qo_len))
        if can_go_ahead(spec, SimpleNamespace(composition=composition, tiles=tiles)):
            found.append((change, max_qo_len))
    assert found == [({}, None)]
