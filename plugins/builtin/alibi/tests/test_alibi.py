import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.errors import ParamError
from attnloom.plugins import PluginSet
from attnloom.testing.functors import FunctorSpec, check_against_reference
from attnloom_alibi.slopes import slopes


def test_the_functor_is_its_reference():
    check_against_reference(["alibi"])
    check_against_reference(["alibi"], {"alibi.slopes": [0.5, -1.0, 0.0, 3.0]})


def test_before_a_soft_cap_and_after_it_differ():
    check_against_reference(["alibi", "soft_cap"])
    check_against_reference(["soft_cap", "alibi"])


@pytest.mark.parametrize("heads", [1, 2, 8, 16, 64])
def test_slopes_of_powers_of_two_are_geometric(heads):
    np.testing.assert_allclose(slopes(heads), [2 ** (-8 * (i + 1) / heads) for i in range(heads)])


def test_slopes_of_other_counts_take_every_other_of_the_power_above():
    np.testing.assert_allclose(slopes(3), [2**-4, 2**-8, 2**-2])
    twelve = [2.0**-i for i in range(1, 9)] + [2.0 ** -(i + 0.5) for i in range(4)]
    np.testing.assert_allclose(slopes(12), twelve)
    assert all(len(set(slopes(n))) == n for n in range(1, 130))


@pytest.mark.parametrize("heads", [6, 8, 12, 40])
def test_slopes_are_those_of_transformers_bloom(heads):
    torch = pytest.importorskip("torch")
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float64).view(heads, 2)[:, 1]
    np.testing.assert_allclose(slopes(heads), theirs.numpy(), rtol=1e-6)


def test_slopes_are_one_a_query_head():
    composition = compose(["alibi"], spec=FunctorSpec(num_qo_heads=6), plugins=PluginSet.default())
    assert composition.resolve().values["alibi.slopes"].shape == (6,)
    with pytest.raises(ParamError, match=r"has shape \[2\], expected \[6\] = \[num_qo_heads\]"):
        composition.resolve({"alibi.slopes": [1.0, 2.0]})
