import numpy as np
import pytest
from attnloom import AttentionSpec
from attnloom.compose import compose
from attnloom.errors import ParamError
from attnloom.kernel import describe
from attnloom.plugins import PluginSet
from attnloom.testing.functors import FunctorSpec, check_against_reference, random_sites


def resolve(params=None, **fields):
    spec = FunctorSpec(params=params, **fields)
    return compose(["rope"], spec=spec, plugins=PluginSet.default()).resolve(params).namespace("rope")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 32), (40, 40), (64, 0)])
def test_the_functor_is_its_reference(interleaved, head_dim, rotary_dim):
    params = {"rope.interleaved": interleaved, "rope.rotary_dim": rotary_dim, "rope.offset": 11}
    check_against_reference(["rope"], params, spec=FunctorSpec(head_dim=head_dim, params=params), n=60)


@pytest.mark.parametrize("position", [0, 1, 1000, 131_071, 2**24 - 1])
def test_pairing_and_precision_at_all_positions(position):
    rng = np.random.default_rng(0)
    sites = random_sites(rng, 8, FunctorSpec())
    sites.q_pos = sites.kv_pos = np.full(8, position)
    for interleaved in (False, True):
        check_against_reference(["rope"], {"rope.interleaved": interleaved}, sites=sites)


@pytest.mark.parametrize("interleaved", [False, True])
def test_dot_products_depend_on_distance_alone(interleaved):
    params = {"rope.interleaved": interleaved}
    compiled = check_against_reference(["rope"], params)
    rng = np.random.default_rng(1)
    q, k = np.repeat(rng.standard_normal((2, 1, 64)), 6, axis=1).astype(np.float32)
    sites = random_sites(rng, 6, FunctorSpec())
    sites.kv_pos = np.array([0, 1, 10, 1000, 8000, 100_000])
    sites.q_pos = sites.kv_pos + 37
    dots = (compiled.rows("query_transform", q, sites) * compiled.rows("key_transform", k, sites)).sum(1)
    np.testing.assert_allclose(dots, dots[0], atol=2e-5)


def transformers_rope(rope_type, head_dim=64, **rope):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": rope_type, "rope_theta": 10000.0, **rope}
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, rope_parameters=parameters)
    inv_freq, scale = ROPE_INIT_FUNCTIONS[rope_type](config, None)
    return inv_freq.double().numpy(), scale


OURS = {
    "rope_theta": "theta",
    "original_max_position_embeddings": "original_max_position",
    "partial_rotary_factor": "partial",
}


@pytest.mark.parametrize(
    ("rope_type", "rope"),
    [
        ("linear", {"factor": 4.0}),
        ("linear", {"factor": 2.0, "partial_rotary_factor": 0.5}),
        (
            "llama3",
            {
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
        (
            "llama3",
            {
                "rope_theta": 500000.0,
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
        ("yarn", {"factor": 32.0, "original_max_position_embeddings": 4096, "rope_theta": 150000.0, "truncate": False}),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6}),
        ("yarn", {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707, "mscale_all_dim": 1.0}),
        ("yarn", {"factor": 1.0, "original_max_position_embeddings": 4096}),
        ("yarn", {"factor": 8.0, "original_max_position_embeddings": 2048, "beta_fast": 16.0, "beta_slow": 2.0}),
    ],
)
def test_scaled_frequencies_are_those_of_transformers(rope_type, rope):
    inv_freq, scale = transformers_rope(rope_type, **rope)
    ours = resolve({"rope.scaling": rope_type, **{f"rope.{OURS.get(key, key)}": value for key, value in rope.items()}})
    np.testing.assert_allclose(ours.inv_freq, inv_freq, rtol=5e-6)
    assert ours.scale == pytest.approx(scale, rel=1e-6)


def test_rotation_is_that_of_transformers_llama():
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    compiled = check_against_reference(["rope"])
    rng = np.random.default_rng(2)
    x = rng.standard_normal((30, 64)).astype(np.float32)
    sites = random_sites(rng, 30, FunctorSpec())
    sites.q_pos = sites.kv_pos = np.arange(30)
    angle = torch.outer(torch.arange(30.0), torch.tensor(compiled.params.namespace("rope").inv_freq)).repeat(1, 2)
    want, _ = llama.apply_rotary_pos_emb(
        torch.tensor(x)[None, None], torch.tensor(x)[None, None], angle.cos()[None], angle.sin()[None]
    )
    np.testing.assert_allclose(compiled.rows("query_transform", x, sites), want[0, 0].numpy(), atol=3e-6)
    np.testing.assert_array_equal(compiled.rows("query_transform", x, sites), compiled.rows("key_transform", x, sites))


def test_yarns_scale_leaves_the_unrotated_elements_alone():
    params = {"rope.scaling": "yarn", "rope.factor": 16.0, "rope.rotary_dim": 16}
    compiled = check_against_reference(["rope"], params)
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    got = compiled.rows("key_transform", x, random_sites(np.random.default_rng(0), 4, FunctorSpec()))
    np.testing.assert_array_equal(got[:, 16:], x[:, 16:])
    turned = np.linalg.norm(got[:, :16], axis=1) / np.linalg.norm(x[:, :16], axis=1)
    np.testing.assert_allclose(turned, 0.1 * np.log(16) + 1, rtol=1e-5)


def test_frequencies_given_by_the_user_are_used():
    given = np.linspace(1, 0, 32, dtype=np.float32)
    check_against_reference(["rope"], {"rope.inv_freq": given})
    with pytest.raises(ParamError, match=r"expected \[32\] = \[rotary_dim//2\]"):
        resolve({"rope.inv_freq": given[:5]})


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"rope.scaling": "ntk"}, "must be one of none, linear, llama3, yarn, got 'ntk'"),
        ({"rope.theta": 0.0}, "theta must be positive"),
        ({"rope.scaling": "llama3", "rope.high_freq_factor": 1.0}, "must exceed"),
    ],
)
def test_values_that_describe_no_rotation_are_refused(params, said):
    with pytest.raises(ParamError, match=said):
        resolve(params)


@pytest.mark.parametrize(
    ("head_dim", "params", "got"),
    [
        (64, {"rope.rotary_dim": 15}, 15),
        (64, {"rope.rotary_dim": 66}, 66),
        (64, {"rope.rotary_dim": -2}, -2),
        (64, {"rope.partial": 1.5}, 96),
        (63, {}, 63),
    ],
)
def test_rows_without_such_pairs_are_refused_before_anything_is_compiled(head_dim, params, got):
    fields = {"num_qo_heads": 2, "num_kv_heads": 1, "head_dim": head_dim, "dtype": "float32"}
    spec = AttentionSpec(variants=["causal", "rope"], params=params, **fields)
    with pytest.raises(ParamError, match=f"rope.rotary_dim must be even and at most head_dim {head_dim}, got {got}"):
        describe(spec)
