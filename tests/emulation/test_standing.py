"""Weights made while no row's m is expected to move: rows whose m moves all the same, and logits all along a curve."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from attnloom import jit
from emulation.bench import HOPPER, KERNELS, TEAMS

STANDING = {
    "teams_float16": (HOPPER, "causal", {"dtype": "float16", **TEAMS}),
    "teams_alibi": (HOPPER, "alibi", TEAMS),
    "teams": KERNELS["teams"],
    "teams_soft_cap": KERNELS["teams_soft_cap"],
}
KEYS = 640


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    for name, kernel in STANDING.items():
        monkeypatch.setitem(KERNELS, name, kernel)


def batch_of_logits(bench, rng, wrapper, logits):
    """A request of `KEYS` keys whose logits, of every row, are near those given by key."""
    index, host, data = bench.batch(rng, wrapper.spec, [(130, KEYS)])
    dim = wrapper.spec.head_dim
    data.q.copy_(torch.ones_like(data.q) + 0.02 * torch.from_numpy(rng.standard_normal(data.q.shape)).to(data.q.dtype))
    data.dq.copy_(data.q)
    slots = (np.asarray(logits) / (dim * wrapper.spec.sm_scale)).reshape(-1, 16, 1, 1)
    pages = host.levels[0].indices.ravel()[: len(slots)]
    data.k[torch.from_numpy(pages).long()] = torch.from_numpy(slots).to(data.k.dtype).expand(-1, -1, *data.k.shape[2:])
    return index, host, data


@pytest.mark.parametrize("rise", (1.0, 3.0, 30.0, 120.0))
@pytest.mark.parametrize("kernel", STANDING)
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


@pytest.mark.parametrize("kernel", ("teams", "teams_soft_cap"))
def test_they_hardly_ever_move(bench, rng, tmp_path, kernel):
    """Rows of ordinary logits weigh a tile that all of them see once, and those that rise do not."""
    shutil.copytree(jit.include_dirs()[0], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "attnloom/cuda/team_rows.cuh"
    before, found, after = path.read_text().partition("curves_of_lane(), beyond, units)) return {};\n")
    assert found
    path.write_text(
        before + found + "    if (!First && all_seen) state.d[0][0] = state.d[0][1] = 0.0f / 0.0f;\n" + after
    )
    wrapper = bench.wrapper(kernel, num_workers=1, headers=(str(tmp_path),))
    params = {"soft_cap.cap": 50.0} if "soft_cap" in kernel else None
    bench.check(wrapper, *bench.batch(rng, wrapper.spec, [(130, KEYS)]), params=params, scale=2.0)
    logits = np.repeat(np.arange(5)[::-1] * 120.0, KEYS // 5)
    with pytest.raises(AssertionError, match="NaN"):
        bench.check(wrapper, *batch_of_logits(bench, rng, wrapper, logits), params=params and {"soft_cap.cap": 1000.0})
