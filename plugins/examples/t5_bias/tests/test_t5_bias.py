import numpy as np
import pytest
from attnloom.errors import ParamError
from attnloom.testing import VariantSuite
from attnloom.testing.functors import FunctorSpec
from attnloom_t5_bias.buckets import bucket_of


class TestT5Bias(VariantSuite):
    variant = "t5_bias"
    cases = ({}, {"bidirectional": True}, {"max_distance": 20})


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 64), (8, 1000)])
def test_buckets_are_those_of_transformers(bidirectional, num_buckets, max_distance):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = np.arange(-3 * max_distance, 3 * max_distance)
    options = {"bidirectional": bidirectional, "num_buckets": num_buckets, "max_distance": max_distance}
    expected = t5.T5Attention._relative_position_bucket(torch.from_numpy(distance), **options)
    assert bucket_of(distance, **options).tolist() == expected.tolist()


def test_a_bias_of_other_buckets_is_refused(attnloom_plugins):
    from attnloom.compose import compose

    composition = compose(["t5_bias"], spec=FunctorSpec(), plugins=attnloom_plugins)
    with pytest.raises(ParamError, match="has 7 row"):
        composition.resolve({"t5_bias.bias": np.zeros((7, 4), np.float32)})
