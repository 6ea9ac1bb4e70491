import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.errors import ParamError
from attnloom.plugins import PluginSet
from attnloom.testing.functors import FunctorSpec, check_against_reference, random_sites


@pytest.mark.parametrize(("left", "right"), [(0, 0), (5, -1), (-1, 5), (-1, -1), (128, 3), (2**31 - 1, 2**31 - 1)])
@pytest.mark.parametrize("chain", [["sliding_window"], ["causal", "sliding_window"]])
def test_the_functor_is_its_reference(left, right, chain):
    check_against_reference(chain, {"sliding_window.left": left, "sliding_window.right": right})


def test_left_counts_the_older_positions_beside_the_query_itself():
    compiled = check_against_reference(["causal", "sliding_window"], {"sliding_window.left": 2})
    sites = random_sites(np.random.default_rng(0), 1, FunctorSpec())
    sites.q_pos = np.array([10])
    assert compiled.ranges(sites) == [[(8, 11)]]
    assert compiled.facts["range_monotone"] and compiled.facts["range_head_uniform"]


def test_windows_that_mean_nothing_are_refused():
    composition = compose(["sliding_window"], spec=FunctorSpec(), plugins=PluginSet.default())
    with pytest.raises(ParamError, match=r"sliding_window\.left.* has no default"):
        composition.resolve()
    with pytest.raises(ParamError, match=r"sliding_window\.right must be at least 0, or -1 for no limit, got -2"):
        composition.resolve({"sliding_window.left": 3, "sliding_window.right": -2})
    with pytest.raises(ParamError, match="must be an integer"):
        composition.resolve({"sliding_window.left": 3.0})
