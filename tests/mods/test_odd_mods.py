import numpy as np
import pytest
from attnloom import Variant
from mods import odd_mods
from mods.table import Table, eager, grid, pick


@pytest.fixture(scope="module")
def table():
    scores = [Variant.from_mods(name, score_mod=mod) for name, mod in odd_mods.SCORES.items()]
    masks = [Variant.from_mods(name, mask_mod=mod) for name, mod in odd_mods.MASKS.items()]
    return Table([*scores, *masks])


@pytest.fixture(scope="module")
def sites():
    return pick(grid(24, 32, requests=3, heads=(0, 1, 2, 3)), np.random.default_rng(5), 150)


@pytest.mark.parametrize("name", odd_mods.SCORES)
def test_scores_are_eagers(table, sites, name):
    x = np.random.default_rng(1).standard_normal(len(sites.request)).astype(np.float32) * 3
    want = eager("score_mod", odd_mods.SCORES[name], sites, score=x)
    got = table.scores(name, x, sites)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * float(np.abs(want[np.isfinite(want)]).max(initial=1)))


@pytest.mark.parametrize("name", odd_mods.MASKS)
def test_masks_are_eagers(table, sites, name):
    want = eager("mask_mod", odd_mods.MASKS[name], sites)
    np.testing.assert_array_equal(table.keeps(name, sites), want)
    assert not (want & ~table.inside(name, sites)).any()
