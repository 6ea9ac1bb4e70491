import numpy as np
import pytest
from attnloom.testing.functors import FunctorSpec, check_against_reference, random_sites


@pytest.mark.parametrize(("scale", "bias"), [(1.0, 0.0), (0.25, -7.0), (-2.0, 3.0)])
def test_the_functor_is_its_reference(scale, bias):
    compiled = check_against_reference(["sigmoid"], {"sigmoid.scale": scale, "sigmoid.bias": bias})
    assert compiled.facts["use_softmax"] == 0


def test_weights_run_from_0_to_1():
    compiled = check_against_reference(["sigmoid"])
    sites = random_sites(np.random.default_rng(0), 4, FunctorSpec())
    np.testing.assert_array_equal(compiled.logits([-np.inf, np.inf, -1e5, 1e4], sites), [0, 1, 0, 1])


def test_small_weights_keep_their_digits():
    compiled = check_against_reference(["sigmoid"])
    x = np.linspace(-80, 10, 1000).astype(np.float32)
    sites = random_sites(np.random.default_rng(0), 1000, FunctorSpec())
    np.testing.assert_allclose(compiled.logits(x, sites), 1 / (1 + np.exp(-x.astype(np.float64))), rtol=1e-6)
