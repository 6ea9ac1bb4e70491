import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.errors import ParamError
from attnloom.plugins import PluginSet
from attnloom.testing.functors import FunctorSpec, check_against_reference, random_sites


@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
def test_the_functor_is_its_reference(cap):
    compiled = check_against_reference(["soft_cap"], {"soft_cap.cap": cap})
    sites = random_sites(np.random.default_rng(0), 4, FunctorSpec())
    got = compiled.logits([np.inf, -np.inf, 1e30, 0.0], sites)
    np.testing.assert_array_equal(got, np.array([cap, -cap, cap, 0.0], np.float32))


def test_the_default_is_gemma_2s():
    bound = compose(["soft_cap"], spec=FunctorSpec(), plugins=PluginSet.default()).resolve()
    assert bound.values == {"soft_cap.cap": 50.0}


@pytest.mark.parametrize("cap", [0, -1.0])
def test_a_cap_that_bounds_nothing_is_refused(cap):
    composition = compose(["soft_cap"], spec=FunctorSpec(), plugins=PluginSet.default())
    with pytest.raises(ParamError, match="must be positive"):
        composition.resolve({"soft_cap.cap": cap})
