import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.errors import ParamError
from attnloom.plugins import PluginSet
from attnloom.testing.functors import FunctorSpec, check_against_reference


@pytest.mark.parametrize("head_dim", [8, 40, 64, 80, 128])
def test_the_functor_is_its_reference(head_dim):
    spec = FunctorSpec(head_dim=head_dim)
    check_against_reference(["qk_norm"], spec=spec, n=50)
    rng = np.random.default_rng(0)
    params = {f"qk_norm.{x}_weight": rng.standard_normal(head_dim).astype(np.float32) for x in "qk"}
    check_against_reference(["qk_norm", "rope"], {**params, "qk_norm.eps": 1e-5}, spec=spec, n=50)


def test_it_is_the_norm_of_qwen_3():
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    norm = qwen.Qwen3RMSNorm(64, eps=1e-6)
    torch.nn.init.normal_(norm.weight)
    compiled = check_against_reference(["qk_norm"], {"qk_norm.q_weight": norm.weight, "qk_norm.k_weight": norm.weight})
    from attnloom.testing.functors import random_sites

    x = torch.randn(20, 64)
    sites = random_sites(np.random.default_rng(0), 20, FunctorSpec())
    want = norm(x).detach().numpy()
    for functor in ("query_transform", "key_transform"):
        np.testing.assert_allclose(compiled.rows(functor, x.numpy(), sites), want, rtol=1e-5, atol=1e-6)


def test_a_row_of_zeros_stays_zero():
    compiled = check_against_reference(["qk_norm"])
    from attnloom.testing.functors import random_sites

    sites = random_sites(np.random.default_rng(0), 1, FunctorSpec())
    assert (compiled.rows("key_transform", np.zeros((1, 64)), sites) == 0).all()


def test_weights_are_one_a_dimension_and_eps_is_not_negative():
    composition = compose(["qk_norm"], spec=FunctorSpec(), plugins=PluginSet.default())
    with pytest.raises(ParamError, match=r"expected \[64\] = \[head_dim\]"):
        composition.resolve({"qk_norm.q_weight": np.ones(32, np.float32)})
    with pytest.raises(ParamError, match="eps must be at least 0"):
        composition.resolve({"qk_norm.eps": -1.0})
