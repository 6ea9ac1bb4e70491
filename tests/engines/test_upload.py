"""Plans on their way to a device that is the host in disguise: what arrives, and what full rings and buffers do."""

from __future__ import annotations

import ctypes
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import attnloom
import numpy as np
import pytest
import torch
from attnloom import jit
from attnloom.abi import IndexView
from attnloom.engines.host import HostEngine
from attnloom.engines.upload import Upload
from attnloom.errors import PlanError
from attnloom.limits import Limits
from attnloom.planned import Binding, Planned
from attnloom.targets import HOST

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the CUDA driver is there: tests/gpu uploads to a real device"
)


@pytest.fixture(scope="module")
def driver():
    source = Path(__file__).with_name("fake_driver.cpp").read_text(encoding="utf-8")
    path = jit.build(jit.CompileUnit(name="fake_driver", kind="test", sources={"driver.cpp": source})).path
    before = os.environ.get("ATTNLOOM_CUDA_DRIVER")
    os.environ["ATTNLOOM_CUDA_DRIVER"] = str(path)
    try:
        jit.binding().ring_free(jit.binding().ring_new(0))
    finally:
        os.environ.pop("ATTNLOOM_CUDA_DRIVER") if before is None else os.environ.update(ATTNLOOM_CUDA_DRIVER=before)
    return ctypes.CDLL(str(path))


@pytest.fixture
def flags(driver):
    names = ("pending", "waits", "copies", "records", "no_memory", "torn")
    found = SimpleNamespace(**{name: ctypes.c_int.in_dll(driver, f"fake_{name}") for name in names})
    found.recorded_on = ctypes.c_size_t.in_dll(driver, "fake_recorded_on")
    for flag in vars(found).values():
        flag.value = 0
    return found


@pytest.fixture
def upload(driver, monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, device=None, **rest: empty(*shape, **rest))
    return Upload(torch.device("cuda", 0), 1 << 16)


@pytest.fixture(scope="module")
def planned():
    spec = attnloom.AttentionSpec(
        ["causal"], num_qo_heads=4, num_kv_heads=2, head_dim=40, dtype="float32", tile=attnloom.Tile(16, 16)
    )
    engine = HostEngine(HOST, spec, Limits(), num_threads=1, num_workers=3)
    made = Planned(spec, engine)
    made.bind(Binding(spec, engine).bind(None))
    return made


def paged(requests, pages=None):
    count = max(-(-kv // 4) for _, kv in requests)
    table = np.arange(len(requests) * count, dtype=np.int32).reshape(len(requests), count) if pages is None else pages
    return attnloom.storage_format("page_table").build_index(
        [qo for qo, _ in requests], [kv for _, kv in requests], 4, block_tables=table
    )


def array(address, like):
    kind = ctypes.c_char * like.nbytes
    return np.frombuffer(kind.from_address(address), like.dtype).reshape(like.shape)


def arrived(planned):
    view = IndexView.from_address(planned.args.device_index)
    index = planned.index
    for name in ("qo_indptr", "kv_len", "token_request"):
        assert np.array_equal(array(getattr(view, name), getattr(index, name)), getattr(index, name)), name
    assert (view.num_requests, view.num_tokens) == (index.num_requests, index.num_tokens)
    assert (view.page_size, view.num_levels) == (index.page_size, len(index.levels))
    for placed, level in zip(view.levels, index.levels, strict=False):
        names = ("row_indptr", "row_tokens", "kv_len", "kv_start", "kv_offset", "page_begin", "indices", "block_pos")
        for name in (*names, "mask_bits", "mask_begin", "key_pos", "key_pos_begin"):
            own = getattr(level, name)
            if own is None:
                assert not getattr(placed, name), name
            else:
                assert np.array_equal(array(getattr(placed, name), own), own), name
    assert ctypes.string_at(planned.args.plan, planned.view.nbytes) == planned.view.to_bytes()
    assert planned.args.plan % 64 == 0
    assert planned.args.num_workers == len(planned.view.decode().queues)
    assert planned.args.merge_pass == (len(planned.index.levels) > 1 and planned.view.num_merge > 0)
    return view


def test_everything_arrives_in_one_copy(flags, upload, planned):
    planned.plan(paged([(1, 9), (3, 17), (0, 5), (2, 0)]))
    upload.send(planned, 0)
    arrived(planned)
    assert flags.copies.value == 1
    before = planned.args.device_index, planned.args.plan
    planned.plan(paged([(1, 4)]))
    upload.send(planned, 0)
    arrived(planned)
    assert (planned.args.device_index, planned.args.plan) == before


def test_levels_and_masks_arrive(flags, upload, planned):
    tree = attnloom.storage_format("tree_attention").build_index(
        [4, 3], [14, 9], 4, parents=[[-1, 0, 0, 1], [-1, 0, 1]], block_tables=np.arange(8, dtype=np.int32).reshape(2, 4)
    )
    planned.plan(tree)
    upload.send(planned, 0)
    view = arrived(planned)
    assert view.num_levels == len(planned.index.levels)


def test_lengths_of_the_device_take_the_place_of_the_hosts(flags, upload, planned):
    planned.plan(paged([(1, 9), (1, 6)]))
    lengths = torch.tensor([5, 6], dtype=torch.int32)
    upload.send(planned, 0, lengths)
    assert IndexView.from_address(planned.args.device_index).kv_len == lengths.data_ptr()


@pytest.mark.parametrize("stream, waits", [(0, 2), (7, 8)])
def test_a_full_ring_waits_and_says_so_once(flags, upload, planned, stream, waits):
    planned.plan(paged([(1, 9)]))
    flags.pending.value = 1
    for _ in range(8):
        upload.send(planned, stream)
    assert flags.waits.value == 0
    with pytest.warns(RuntimeWarning, match=r"plan\(\) waited: eight plans"):
        upload.send(planned, stream)
    for _ in range(7):
        upload.send(planned, stream)
    assert flags.waits.value == waits


def test_uploads_on_the_default_stream_share_events(flags, upload, planned):
    planned.plan(paged([(1, 9)]))
    for _ in range(9):
        upload.send(planned, 0)
    assert flags.records.value == 2
    upload.send(planned, 7)
    assert (flags.records.value, flags.recorded_on.value) == (4, 7)
    upload.send(planned, 7)
    assert flags.records.value == 5


def test_whoever_follows_waits_for_the_newest_upload(flags, upload, planned):
    planned.plan(paged([(1, 9)]))
    upload.follow(7)
    assert flags.records.value == 0
    upload.send(planned, 0)
    upload.follow(7)
    upload.follow(8)
    assert (flags.records.value, flags.recorded_on.value) == (1, 0)


@pytest.mark.parametrize("seed", range(10))
def test_no_slot_is_written_before_it_was_read(flags, upload, planned, seed):
    rng = np.random.default_rng(seed)
    flags.pending.value = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for number, stream in enumerate(rng.choice([0, 0, 0, 0, 7, 8], 50)):
            if rng.random() < 0.1:
                upload.follow(9)
            planned.plan(paged([(1, 1 + number)]))
            upload.send(planned, int(stream))
        planned.plan(paged([(1, 4)], np.zeros((1, 60_000), np.int32)))
        upload.send(planned, 0)  # the ring grows once all was read
    assert flags.torn.value == 0
    assert flags.waits.value >= 10


def test_the_buffer_grows_until_a_graph_holds_it(flags, upload, planned):
    large = paged([(1, 4)], np.zeros((1, 60_000), np.int32))
    planned.plan(large)
    upload.send(planned, 0)
    arrived(planned)
    assert upload.nbytes > 240_000
    upload.captured = True
    planned.plan(paged([(1, 4)], np.zeros((1, 120_000), np.int32)))
    with pytest.raises(PlanError, match=r"take 4\d+ bytes, but a CUDA graph has captured a buffer of \d+"):
        upload.send(planned, 0)
    planned.plan(large)
    upload.send(planned, 0)
    arrived(planned)


def test_no_pinned_memory(flags, upload, planned):
    planned.plan(paged([(1, 9)]))
    flags.no_memory.value = 1
    with pytest.raises(MemoryError, match="pinned memory for plans"):
        upload.send(planned, 0)
    flags.no_memory.value = 0
    upload.send(planned, 0)
    arrived(planned)


def test_a_device_that_is_not_there(driver):
    with pytest.raises(RuntimeError, match=r"opening the CUDA device failed: CUDA_ERROR_INVALID_DEVICE \(101\)"):
        jit.binding().ring_new(7)
