"""kv_range of several variants: exact intersection, against brute force."""

import itertools

import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.testing.functors import CompiledFunctors, random_sites
from attnloom.variant import TensorParam

TWO = """
struct {struct} {{
  template <class P> ATTNLOOM_FN attnloom::Ranges kv_range(const P& p, const attnloom::Site& s) const {{
    const int r = s.q_index;
    return {{{{p.bounds(r, 0), p.bounds(r, 1)}}, {{p.bounds(r, 2), p.bounds(r, 3)}}}};
  }}
}};
"""
ROWS = 400


def random_bounds(rng, ordered=True):
    """Two intervals a row, now and then empty or touching."""
    bounds = rng.integers(-4, 24, (ROWS, 4))
    if ordered:
        bounds = np.sort(bounds, axis=1)
    empty = rng.random(ROWS) < 0.2
    bounds[empty, 1] = bounds[empty, 0] - rng.integers(0, 2, empty.sum())
    return bounds.astype(np.int32)


def sites_of_rows(spec):
    sites = random_sites(np.random.default_rng(0), ROWS, spec)
    sites.q_index = np.arange(ROWS)
    return sites


@pytest.mark.parametrize("count", [1, 2, 3])
def test_intersection_is_exact_sorted_and_disjoint(plugins, spec, count):
    rng = np.random.default_rng(count)
    params = {}
    for i in range(count):
        shape = (ROWS, 4)
        plugins.add(
            f"two{i}",
            TWO.format(struct=f"Two{i}"),
            struct=f"Two{i}",
            functors={"kv_range"},
            params=[TensorParam("bounds", dtype="int32", shape=shape)],
        )
        params[f"two{i}.bounds"] = random_bounds(rng)
    compiled = CompiledFunctors(
        compose([f"two{i}" for i in range(count)], spec=spec, plugins=plugins, params=params), params
    )
    assert compiled.facts["max_ranges"] == count + 1
    for row, got in enumerate(compiled.ranges(sites_of_rows(spec))):
        want = set(range(-10, 30))
        for bounds in params.values():
            a, b, c, d = bounds[row].tolist()
            want &= set(range(a, b)) | set(range(c, d))
        assert {pos for lo, hi in got for pos in range(lo, hi)} == want
        assert all(lo < hi for lo, hi in got)
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(got))


def test_two_ranges_out_of_order_or_overlapping_lose_nothing(plugins, spec):
    plugins.add(
        "two",
        TWO.format(struct="Two"),
        functors={"kv_range"},
        params=[TensorParam("bounds", dtype="int32", shape=(ROWS, 4))],
    )
    bounds = random_bounds(np.random.default_rng(7), ordered=False)
    compiled = CompiledFunctors(compose(["two"], spec=spec, plugins=plugins), {"two.bounds": bounds})
    for row, got in enumerate(compiled.ranges(sites_of_rows(spec))):
        a, b, c, d = bounds[row].tolist()
        assert {pos for lo, hi in got for pos in range(lo, hi)} == set(range(a, b)) | set(range(c, d))


def test_without_ranges_every_position_is_visible(plugins, spec):
    compiled = CompiledFunctors(compose(["soft_cap"], spec=spec, plugins=plugins))
    assert compiled.ranges(sites_of_rows(spec))[0] == [(-(2**31), 2**31 - 1)]
    assert compiled.facts == {
        "max_ranges": 1,
        "range_monotone": 1,
        "range_head_uniform": 1,
        "use_softmax": 1,
        "has_kv_range": 0,
        "has_logits_mask": 0,
        "linear_in_distance": 0,
        "may_curve": 1,
    }


def test_monotone_holds_only_if_every_member_says_so(plugins, spec):
    params = {"sliding_window.left": 4}
    both = CompiledFunctors(compose(["causal", "sliding_window"], spec=spec, plugins=plugins), params)
    assert (both.facts["range_monotone"], both.facts["range_head_uniform"], both.facts["max_ranges"]) == (1, 1, 1)
    plugins.add(
        "two",
        TWO.format(struct="Two"),
        functors={"kv_range"},
        params=[TensorParam("bounds", dtype="int32", shape=("*", 4))],
    )
    one = CompiledFunctors(
        compose(["causal", "two"], spec=spec, plugins=plugins), {"two.bounds": np.zeros((1, 4), np.int32)}
    )
    assert (one.facts["range_monotone"], one.facts["range_head_uniform"], one.facts["max_ranges"]) == (0, 0, 2)


def test_positions_at_the_ends_of_int_do_not_wrap(plugins, spec):
    sites = random_sites(np.random.default_rng(0), 2, spec)
    sites.q_pos = np.array([2**31 - 1, -(2**31)])
    compiled = CompiledFunctors(
        compose(["sliding_window"], spec=spec, plugins=plugins),
        {"sliding_window.left": 2**31 - 1, "sliding_window.right": 9},
    )
    assert compiled.ranges(sites) == [[(0, 2**31 - 1)], [(-(2**31), -(2**31) + 10)]]
    causal = CompiledFunctors(compose(["causal"], spec=spec, plugins=plugins))
    assert causal.ranges(sites) == [[(-(2**31), 2**31 - 1)], [(-(2**31), -(2**31) + 1)]]
