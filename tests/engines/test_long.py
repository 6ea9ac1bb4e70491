"""Which wrappers have a second kernel, and which batches it takes."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import attnloom
import attrs
import numpy as np
import pytest
import torch
from attnloom.builtin import AUTO, CAUSAL
from attnloom.cli.compile import _units
from attnloom.engines import long
from attnloom.engines.keys_ahead import can_go_ahead
from attnloom.errors import CompileError, UnsupportedError
from attnloom.kernel import describe, open_composed
from attnloom.limits import Limits
from attnloom.targets import HOST, CudaTarget
from hypothesis import given
from hypothesis import strategies as st

HOPPER = CudaTarget("sm_90a")
LONG = [(700, 900), (513, 1000)]
BOTH = attnloom.TileChoice(short=attnloom.Tile(16, 128, "mma"), tall=long.TALL)


def spec_of(variants=("causal",), **fields):
    return attnloom.AttentionSpec(
        variants, **{"num_qo_heads": 32, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", **fields}
    )


def second_of(spec, target=HOPPER, limits=None):
    limits = limits or Limits()
    composition, tiles, _ = describe(spec, target, limits)
    return long.long_spec(spec, tiles, composition.functors, limits)


def paged(requests, page_size=16):
    counts = [-(-kv // page_size) for _, kv in requests]
    table = np.zeros((len(requests), max([*counts, 1])), np.int32)
    for row, count in enumerate(counts):
        table[row, :count] = range(row * 1000, row * 1000 + count)
    qo_lens, kv_lens = zip(*requests, strict=True)
    return attnloom.storage_format("page_table").build_index(qo_lens, kv_lens, page_size, block_tables=table)


@pytest.mark.parametrize("variants", [[], ["causal"], ["rope", "causal"], ["alibi", "soft_cap"]])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128])
def test_its_tiles(variants, head_dim):
    spec = spec_of(variants, head_dim=head_dim)
    second = second_of(spec)
    assert second.tile == BOTH
    assert second.evolve(tile="auto") == spec
    _, tiles, unit = describe(second, HOPPER)
    config = HOPPER.config(second, tiles)
    assert (config.copiers, config.warps, config.blocks) == (4, 8, 1)
    assert config.shared_bytes <= config.shared_limit
    assert "warps = 8, copiers = 4" in dict(unit.sources)["kernel.cu"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_groups_that_have_one(dtype):
    for group, has in ((1, True), (17, True), (32, True), (33, False), (64, False)):
        assert (second_of(spec_of(num_qo_heads=group, num_kv_heads=1, dtype=dtype)) is not None) == has


@pytest.mark.parametrize("target", [HOST, CudaTarget("sm_80"), CudaTarget("sm_90"), CudaTarget("sm_120")], ids=str)
def test_other_devices_have_none(target):
    assert second_of(spec_of(), target) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_dtype": "float8_e4m3fn"},
        {"kv_dtype": "float8_e5m2"},
        {"batch_invariant": True},
        {"tile": attnloom.Tile(128, 64, "wgmma")},
        {"tile": attnloom.TileChoice(short=attnloom.Tile(16, 64, "mma"), tall=attnloom.Tile(128, 64, "wgmma"))},
        {"head_dim": 192, "head_dim_v": 128},
        {"head_dim": 256},
    ],
    ids=str,
)
def test_specs_of_one_kernel(fields):
    assert second_of(spec_of(**fields)) is None


@pytest.mark.parametrize("limit", ["requests", "tokens", "qo_len", "kv_len", "pages", "levels"])
def test_maxima_leave_one_kernel(limit):
    assert second_of(spec_of(), limits=Limits(**{limit: 4096})) is None


def test_functors_and_rules_of_one_kernel():
    spec = spec_of()
    tiles = describe(spec, HOPPER)[1]
    assert long.long_spec(spec, tiles, {"key_transform"}, Limits()) is not None
    assert long.long_spec(spec, tiles, {"value_transform"}, Limits()) is None
    assert tiles.by == AUTO.name
    assert (
        long.long_spec(spec, attnloom.TileChoice(short=tiles.short, tall=tiles.tall, by="mine"), (), Limits()) is None
    )


def test_values_are_not_transformed():
    variant = attrs.evolve(CAUSAL, name="values", package="attnloom", functors={"value_transform"})
    assert second_of(spec_of([variant])) is None
    with pytest.raises(UnsupportedError, match="t_kv=128, family='wgmma'.* with a value_transform"):
        describe(spec_of([variant], tile=long.TALL), HOPPER)


@pytest.mark.parametrize(
    ("tiles", "maxima", "fields", "variants", "fits"),
    [
        (BOTH, {}, {}, ["rope"], True),
        (BOTH, {"requests": 9}, {}, ["rope"], False),
        (BOTH, {}, {"batch_invariant": True}, ["rope"], False),
        (long.TALL, {}, {}, ["rope"], False),
        (attnloom.TileChoice(short=long.TALL, tall=attnloom.Tile(128, 64, "wgmma")), {}, {}, ["rope"], False),
        (attnloom.TileChoice(short=long.TALL, tall=long.TALL), {}, {}, ["rope"], False),
        (BOTH, {"requests": 9}, {"batch_invariant": True}, ["causal"], True),
        (long.TALL, {"requests": 9}, {}, ["causal"], True),
    ],
)
def test_keys_are_transformed_ahead_or_not_at_all(tiles, maxima, fields, variants, fits):
    spec = spec_of(variants, tile=tiles, **fields)
    with nullcontext() if fits else pytest.raises(UnsupportedError, match="with a key_transform.*take a t_kv of 64"):
        composition, tiles, _ = describe(spec, HOPPER, Limits(**maxima))
        if "key_transform" in composition.functors:
            assert can_go_ahead(spec, SimpleNamespace(composition=composition, tiles=tiles))


def test_both_are_built_ahead_of_time():
    spec = spec_of()
    both = [describe(one, HOPPER)[2] for one in (spec, second_of(spec))]
    assert _units(spec, HOPPER, None) == both
    assert _units(spec, HOPPER, 1) == [describe(spec, HOPPER, Limits(qo_len=1))[2]]
    assert len(_units(spec, CudaTarget("sm_80"), None)) == len(_units(spec_of(batch_invariant=True), HOPPER, None)) == 1


FACTOR = 2


def scaled(score, b, h, q, kv):
    return score * FACTOR


def test_it_is_made_of_what_the_first_composed(monkeypatch):
    spec = spec_of([attnloom.Variant.from_mods("scaled", score_mod=scaled), "causal"])
    second = second_of(spec)
    composition, _, first = describe(spec, HOPPER)
    before = describe(second, HOPPER)[2]
    monkeypatch.setitem(globals(), "FACTOR", 3)
    monkeypatch.setattr("attnloom.kernel._load", lambda *made: made)
    _, _, reused, tiles, unit = open_composed(second, HOPPER, composition)
    assert reused is composition and tiles.tall == long.TALL
    assert unit == before != describe(second, HOPPER)[2]
    assert unit != first


@pytest.mark.parametrize(
    "error",
    [
        CompileError("no compiler"),
        UnsupportedError("too many ranges"),
        RuntimeError("the device has not so much shared memory"),
        torch.OutOfMemoryError("no room for maps"),
        MemoryError("no room"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_one_that_cannot_be_opened_leaves_the_first(monkeypatch, caplog, error):
    spec = spec_of(num_qo_heads=2, num_kv_heads=1, head_dim=16, dtype="float32")
    wrapper = attnloom.AttentionWrapper(spec)
    asked = []

    def fail():
        asked.append(error)
        raise error

    monkeypatch.setattr(wrapper._engine, "long_spec", spec, raising=False)
    monkeypatch.setattr(wrapper._engine, "captured", False, raising=False)
    monkeypatch.setattr(wrapper._engine, "open_long", fail, raising=False)
    for _ in range(2):
        wrapper.plan(paged([(600, 900)]))
    assert asked == [error] and str(error) in caplog.text
    out = wrapper.run(torch.randn(600, 2, 16), torch.randn(57, 2, 16, 1, 16))
    assert torch.isfinite(out).all()


lengths = st.one_of(st.integers(0, 4), st.integers(0, 1500))


@given(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=8), st.sampled_from([1, 4, 8, 32]))
def test_rows_that_see_many_keys(requests, group):
    rows = sum(qo for qo, _ in requests) * group
    keys = sum(float(qo) * (kv - qo / 2) for qo, kv in requests)
    expected = rows >= 384 * len(requests) and keys >= 128 * sum(qo for qo, _ in requests)
    assert long.is_long(paged(requests), group) == expected


@pytest.mark.parametrize(
    "requests, has",
    [
        (LONG, True),
        ([(256, 256)], True),
        ([(96, 180)], True),
        ([(95, 4000)], False),
        ([(250, 250)], False),
        ([(1, 9000)] * 8, False),
        ([(700, 900), *[(1, 900)] * 8], False),
        ([(0, 900)], False),
    ],
)
def test_batches(requests, has):
    assert long.is_long(paged(requests), 4) == has


def test_a_batch_of_nothing():
    assert not long.is_long(attnloom.storage_format("dense").build_index([], []), 4)


@pytest.mark.parametrize("page_size, has", [(1, False), (4, False), (12, False), (8, True), (24, True), (130, True)])
def test_pages_that_hold_boxes(page_size, has):
    assert long.is_long(paged(LONG, page_size), 4) == has


def test_composed_batches_stay_with_the_first_kernel():
    index = paged(LONG)
    assert not long.is_long(attnloom.ComposedIndex(**{**fields_of(index), "single": index}), 4)
    assert not long.is_long(attnloom.ComposedIndex(**{**fields_of(index), "levels": index.levels * 2}), 4)


def fields_of(index):
    names = ("page_size", "qo_indptr", "kv_len", "token_request", "levels")
    return {name: getattr(index, name) for name in names}


def test_what_is_said_of_the_batches():
    for number in (long._ROWS, long._KEYS, long.TALL.t_kv):
        assert f" {number} " in long.BATCHES
