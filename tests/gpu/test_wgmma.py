"""The family `wgmma`: many rows on Hopper, against the oracle; and what has no such tiles."""

from __future__ import annotations

import attnloom
import attrs
import numpy as np
import pytest
import torch
from attnloom.targets import target_of
from gpu.bench import HARDER

ODD = [(130, 130), (1, 70), (77, 400), (200, 263), (65, 64), (3, 190), (0, 5), (128, 0)]
"""Rows and keys that end inside tiles, on their edges, and before them; more rows than keys."""

TILE = attnloom.Tile(128, 64, "wgmma")


@pytest.fixture(autouse=True)
def only_where_it_runs():
    if "wgmma" not in target_of(torch.device("cuda", 0)).families:
        pytest.skip("the device has no wgmma")


def wrapper_of(bench, spec, **options):
    wrapper = bench.wrapper(spec, **options)
    tiles = wrapper.kernel.tiles
    assert (tiles.tall or tiles.short) == TILE, tiles.why
    return wrapper


@pytest.mark.parametrize("page_size", (1, 16))
@pytest.mark.parametrize("name", ("plain", "causal", "d80", "d96", "d112"))
def test_head_dims(bench, rng, name, page_size):
    spec = bench.spec(name)
    index, host, data = bench.batch(rng, spec, ODD, page_size)
    bench.check(wrapper_of(bench, spec), index, host, data)


@pytest.mark.parametrize(
    "name", ("soft_cap", "window", "alibi", "capped_alibi", "sigmoid", "qk_norm", "e4m3", "e5m2", "e4m3_rope")
)
def test_variants(bench, rng, name):
    spec = bench.spec(name)
    index, host, data = bench.batch(rng, spec, ODD)
    bench.check(wrapper_of(bench, spec), index, host, data, scale=HARDER.get(name, 1.0))


@pytest.mark.parametrize("group", (1, 3, 8, 128))
def test_groups(bench, rng, group):
    spec = bench.spec("causal", num_qo_heads=group, num_kv_heads=1)
    index, host, data = bench.batch(rng, spec, ODD)
    bench.check(wrapper_of(bench, spec), index, host, data)


@pytest.mark.parametrize("left", (0, 20, 63, 64, 200))
def test_ranges_that_hide_half_a_tile(bench, rng, left):
    spec = bench.spec("window", num_qo_heads=8, num_kv_heads=8)
    index, host, data = bench.batch(rng, spec, [(256, 400), (150, 150)])
    bench.check(wrapper_of(bench, spec), index, host, data, params={"sliding_window.left": left}, scale=2.0)


@pytest.mark.parametrize("name", ("causal", "window", "sigmoid"))
def test_units_that_follow_each_other(bench, rng, name):
    """A worker has several, between units of few rows and such without keys: one begins before the last has ended."""
    spec = bench.spec(name, num_qo_heads=8, num_kv_heads=8)
    index, host, data = bench.batch(rng, spec, ODD * 30)
    wrapper = wrapper_of(bench, spec)
    bench.check(wrapper, index, host, data, scale=2.0 * HARDER.get(name, 1.0))
    queues = wrapper._plan.view.decode().queues
    assert max(sum(item.heads for item in queue if item.tile_class == 1) for queue in queues) > 2


@pytest.mark.parametrize("how", ({}, {"batch_invariant": True}))
def test_same_bits_again(bench, rng, how):
    spec = bench.spec("causal", **how)
    wrapper = wrapper_of(bench, spec)
    index, _, data = bench.batch(rng, spec, [(300, 700), (129, 129)])
    wrapper.plan(index)
    first, second = bench.run(wrapper, data)[0], bench.run(wrapper, data)[0]
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))


def test_a_prefix_of_many_rows(bench, radix_index, rng):
    spec = bench.spec("causal")
    index, pages = radix_index(rng, [(0, 1, 40)] * 40 + [(1, 70, 90)], roots=(40, 6, 0))
    index = attrs.evolve(index, single=None)  # or a plan may choose, by its costs, to share nothing
    data = bench.tensors(rng, spec, index, pages)
    wrapper = wrapper_of(bench, spec)
    bench.check(wrapper, index, index, data)
    assert any(item.tile_class == 1 for item in wrapper._plan.view.decode().items)


def test_a_split_tile(bench, rng):
    spec = bench.spec("causal", num_qo_heads=2, num_kv_heads=1)
    index, host, data = bench.batch(rng, spec, [(64, 5000)])
    wrapper = wrapper_of(bench, spec)
    bench.check(wrapper, index, host, data)
    assert wrapper.workspace_size() > 0


def test_a_tile_given_by_the_spec(bench, rng):
    spec = bench.spec("causal", tile=TILE)
    index, host, data = bench.batch(rng, spec, ODD)
    bench.check(wrapper_of(bench, spec), index, host, data)


def test_large_and_small_scores(bench, rng):
    spec = bench.spec("causal")
    for magnitude in (0.01, 30.0):
        index, host, data = bench.batch(rng, spec, [(200, 333)], magnitude=magnitude)
        bench.check(wrapper_of(bench, spec), index, host, data, scale=2.0)


def test_bits_of_a_mask(bench, rng):
    spec = bench.spec("plain")
    requests = [(140, 170), (64, 300)]
    masks = [rng.random(shape) < 0.6 for shape in requests]
    index, host, data = bench.batch(rng, spec, requests, mask=masks)
    bench.check(wrapper_of(bench, spec), index, host, data)


@pytest.mark.parametrize("magnitude", (1.0, 8.0))
def test_scores_that_grow(bench, rng, magnitude):
    """Later keys score higher and higher: O~ is rescaled again and again."""
    spec = bench.spec("causal", num_qo_heads=2, num_kv_heads=1)
    index, host, data = bench.batch(rng, spec, [(128, 1500)], 64)
    ramp = torch.from_numpy(np.linspace(0, magnitude, data.k.shape[0] * 64, dtype=np.float32)).view(-1, 64, 1, 1)
    data.k = (data.k.float() * ramp).to(data.k.dtype)
    data.kv = (data.k.to("cuda"), data.v.to("cuda"))
    bench.check(wrapper_of(bench, spec), index, host, data, scale=2.0)
