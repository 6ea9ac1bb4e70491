import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.errors import ParamError
from attnloom.plugins import PluginSet
from attnloom.testing.functors import FunctorSpec, check_against_reference, random_sites


def test_the_functor_is_its_reference():
    check_against_reference(["sinks"], {"sinks.sinks": [0.5, -3.0, 4.0, 0.0]})


def test_a_sink_of_minus_infinity_is_none():
    compiled = check_against_reference(["sinks"], {"sinks.sinks": [-np.inf, 1.0, 2.0, 3.0]})
    sites = random_sites(np.random.default_rng(0), 2, FunctorSpec())
    sites.qo_head = np.array([0, 3])
    np.testing.assert_array_equal(compiled.row_init(sites), [[-np.inf, 0], [3, 1]])


def test_sinks_are_one_a_query_head_and_have_no_default():
    composition = compose(["sinks"], spec=FunctorSpec(), plugins=PluginSet.default())
    with pytest.raises(ParamError, match="has no default"):
        composition.resolve()
    with pytest.raises(ParamError, match=r"expected \[4\]"):
        composition.resolve({"sinks.sinks": np.zeros(2, np.float32)})
