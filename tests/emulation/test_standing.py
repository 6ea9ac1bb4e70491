"""Weights made while no row's m is expected to move: rows whose m moves all the same, and logits all along a curve."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import attnloom
import numpy as np
import pytest
import torch
from attnloom import jit
from emulation.bench import HOPPER, KERNELS, TEAMS, same_bits

ONE_CLASS = attnloom.Tile(128, 128, "wgmma")
STANDING = {
    "teams_float16": (HOPPER, "causal", {"dtype": "float16", **TEAMS}),
    "teams_alibi": (HOPPER, "alibi", TEAMS),
    # Plans that are batch-invariant use one class of tiles.
    "invariant_float16": (HOPPER, "causal", {"dtype": "float16", "batch_invariant": True, "tile": ONE_CLASS}),
    "invariant_soft_cap": (HOPPER, "soft_cap", {"batch_invariant": True, "tile": ONE_CLASS}),
    "teams": KERNELS["teams"],
    "teams_soft_cap": KERNELS["teams_soft_cap"],
}
KEYS = 640


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    for name, kernel in STANDING.items():
        monkeypatch.setitem(KERNELS, name, kernel)


def batch_of_logits(bench, rng, wrapper, logits, noise=0.02):
    """A request of `KEYS` keys whose logits, of every row, are near those given by key."""
    index, host, data = bench.batch(rng, wrapper.spec, [(40, KEYS)])
    dim = wrapper.spec.head_dim
    data.q.copy_(torch.ones_like(data.q) + noise * torch.from_numpy(rng.standard_normal(data.q.shape)).to(data.q.dtype))
    data.dq.copy_(data.q)
    slots = (np.asarray(logits) / (dim * wrapper.spec.sm_scale)).reshape(-1, 16, 1, 1)
    pages = host.levels[0].indices.ravel()[: len(slots)]
    data.k[torch.from_numpy(pages).long()] = torch.from_numpy(slots).to(data.k.dtype).expand(-1, -1, *data.k.shape[2:])
    return index, host, data


@pytest.mark.parametrize("rise", (3.0, 30.0, 120.0))
@pytest.mark.parametrize("kernel", ("teams_float16", "teams_alibi", "teams", "teams_soft_cap"))
def test_logits_that_rise(bench, rng, kernel, rise):
    """From tile to tile, in the order in which these are read, and in the other one."""
    wrapper = bench.wrapper(kernel, num_workers=1)
    params = {"soft_cap.cap": 1000.0} if "soft_cap" in kernel else None
    for tiles in (np.arange(5) * rise, np.arange(5)[::-1] * rise):
        logits = np.repeat(tiles, KEYS // 5) + rng.standard_normal(KEYS)
        bench.check(wrapper, *batch_of_logits(bench, rng, wrapper, logits), params=params, scale=8.0)


@pytest.mark.parametrize("tiles", ([1, 20, 1, 60, 1], [8, 9.3, 9.6, 24, 26], [60, 1, 20, 1, 0]))
def test_logits_near_a_cap_and_far_from_it(bench, rng, tiles):
    wrapper = bench.wrapper("teams_soft_cap", num_workers=1)
    signs = np.where(np.arange(KEYS) % 3, 1, -1)
    logits = np.repeat(np.float64(tiles), KEYS // 5) * signs
    bench.check(wrapper, *batch_of_logits(bench, rng, wrapper, logits), params={"soft_cap.cap": 50.0}, scale=8.0)


def poisoned_where(tmp_path, condition):
    """Headers with which NaN follows where weights of a tile are made in vain, if `condition` holds then."""
    shutil.copytree(jit.include_dirs()[0], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "attnloom/cuda/team_rows.cuh"
    before, found, after = path.read_text().partition("    if (!__all_sync(~0u, holds & stand)) {\n")
    assert found
    path.write_text(before + found + f"      if ({condition}) state.d[0][0] = state.d[0][1] = 0.0f / 0.0f;\n" + after)
    return (str(tmp_path),)


@pytest.mark.parametrize("kernel", ("teams", "teams_soft_cap", "teams_alibi"))
def test_they_hardly_ever_move(bench, rng, tmp_path, kernel):
    """Rows of ordinary logits weigh a tile that all of them see once, and those that rise do not."""
    wrapper = bench.wrapper(kernel, num_workers=1, headers=poisoned_where(tmp_path, "true"))
    params = {"soft_cap.cap": 50.0} if "soft_cap" in kernel else None
    bench.check(wrapper, *bench.batch(rng, wrapper.spec, [(40, KEYS)]), params=params, scale=2.0)
    logits = np.repeat(np.arange(5)[::-1] * 120.0, KEYS // 5)
    with pytest.raises(AssertionError, match="NaN"):
        bench.check(wrapper, *batch_of_logits(bench, rng, wrapper, logits), params=params and {"soft_cap.cap": 1000.0})


def test_only_the_first_tile_far_from_zero_is_weighed_twice(bench, rng, tmp_path):
    """Those after it take all terms of the curve at once."""
    wrapper = bench.wrapper("teams_soft_cap", num_workers=1, headers=poisoned_where(tmp_path, "beyond"))
    logits = np.where(np.arange(KEYS) % 3, 20.0, -20.0)
    bench.check(wrapper, *batch_of_logits(bench, rng, wrapper, logits), params={"soft_cap.cap": 50.0}, scale=8.0)
    logits = np.where(np.arange(KEYS) % 3, 45.0, -45.0)  # past the end of the curve
    with pytest.raises(AssertionError, match="NaN"):
        bench.check(wrapper, *batch_of_logits(bench, rng, wrapper, logits), params={"soft_cap.cap": 50.0}, scale=8.0)


@pytest.mark.parametrize("small, large", [(29.5, 36.6), (34.5, 36.6), (30, 151)])
@pytest.mark.parametrize("kernel", ("causal", "wgmma", "teams"))
def test_a_large_weight_before_a_larger_one(bench, rng, kernel, small, large):
    """So many powers of two above m, which tiles of zeros have set; from either end, as kernels go either way."""
    wrapper = bench.wrapper(kernel, num_workers=1)
    for places in ((300, 100), (150, 300)):
        logits = np.zeros(KEYS)
        logits[list(places)] = (90 + np.float64((small, large))) * np.log(2)
        bench.check(wrapper, *batch_of_logits(bench, rng, wrapper, logits, noise=0.0), scale=8.0)


@pytest.mark.parametrize("mate", (30.0, np.nan))
@pytest.mark.parametrize("kernel", ("invariant_float16", "invariant_soft_cap"))
def test_queries_of_others_beside_the_last_ones(bench, rng, kernel, mate):
    """A box of queries holds those of the next request too, which change no bit."""
    wrapper = bench.wrapper(kernel)
    params = {"soft_cap.cap": 50.0} if "soft_cap" in kernel else None
    tables = rng.permutation(100).astype(np.int32).reshape(2, 50)
    alone, both = (
        attnloom.storage_format("page_table").build_index([30] * n, [600] * n, 16, block_tables=tables[:n])
        for n in (1, 2)
    )
    data = bench.tensors(rng, wrapper.spec, both, 100)
    data.q[:30] *= 2
    data.q[30:] *= mate
    data.dq.copy_(data.q)
    rise = torch.linspace(2.5, 1, 37).view(-1, 1, 1, 1)  # toward the first keys: m is passed by 2^10 to 2^15
    pages = torch.from_numpy(tables[0, :37].copy()).long()
    data.k[pages] = (data.k[pages] * rise).to(data.k.dtype)
    wrapper.plan(both, params=params)
    beside = bench.run(wrapper, data)
    wrapper.plan(alone, params=params)
    found = bench.run(wrapper, SimpleNamespace(q=data.q[:30], dq=data.dq[:30], kv=data.kv, kv_layout=data.kv_layout))
    assert all(same_bits(one, of_both[:30]) for one, of_both in zip(found, beside, strict=True))
