from __future__ import annotations

import copy
import math
import pickle

import attnloom
import pytest
import torch
from attnloom import AttentionSpec, Tile
from attnloom.builtin import CAUSAL
from attnloom.plugins import Config, PluginSet


def spec(**fields):
    return AttentionSpec(
        **{"variants": ["causal"], "num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32", **fields}
    )


def test_defaults_follow():
    made = spec(dtype=torch.float16)
    assert (made.head_dim_v, made.dtype, made.kv_dtype, made.out_dtype) == (64, "float16", "float16", "float16")
    assert made.sm_scale == 1 / math.sqrt(64) and made.group == 4
    other = made.evolve(head_dim=96, dtype="bf16")
    assert (other.head_dim_v, other.kv_dtype, other.sm_scale) == (96, "bfloat16", 1 / math.sqrt(96))
    assert made.evolve(sm_scale=2.0).evolve(head_dim=96).sm_scale == 2.0
    assert AttentionSpec([], 1, 1, 8).dtype == "bfloat16"


@pytest.mark.parametrize(
    "fields, error, words",
    [
        ({"num_qo_heads": 7}, attnloom.UnsupportedError, ["7", "2"]),
        ({"num_kv_heads": 0}, attnloom.UnsupportedError, ["num_kv_heads", "0"]),
        ({"head_dim": -1}, attnloom.UnsupportedError, ["head_dim", "-1"]),
        ({"head_dim_v": 1.5}, attnloom.UnsupportedError, ["head_dim_v", "1.5"]),
        ({"dtype": "float8_e4m3fn"}, attnloom.UnsupportedError, ["float8_e4m3fn", "bfloat16"]),
        ({"dtype": torch.int8}, attnloom.UnsupportedError, ["dtype torch.int8", "float32, float16, bfloat16"]),
        ({"out_dtype": "e4m3"}, attnloom.UnsupportedError, ["out_dtype 'e4m3'", "float32, float16, bfloat16"]),
        ({"kv_dtype": torch.int32}, attnloom.UnsupportedError, ["kv_dtype torch.int32", "float8_e5m2"]),
        ({"kv_dtype": "bfloat61"}, attnloom.UnsupportedError, ["bfloat61", "did you mean 'bfloat16'"]),
        ({"sm_scale": float("nan")}, attnloom.UnsupportedError, ["sm_scale", "nan"]),
        ({"tile": 64}, attnloom.UnsupportedError, ["tile", "64"]),
        ({"variants": "causal"}, attnloom.CompositionError, ["variants=['causal']"]),
        ({"variants": [3]}, attnloom.CompositionError, ["3"]),
        ({"params": [1]}, attnloom.ParamError, ["soft_cap.cap"]),
    ],
)
def test_what_cannot_be_right(fields, error, words):
    with pytest.raises(error) as caught:
        spec(**fields)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["dtype", "out_dtype"])
@pytest.mark.parametrize("given", [torch.int32, "int32", "fp8", "float8", "float8_e5m3", "float64", torch.float8_e5m2])
def test_what_is_said_of_a_dtype_lists_and_suggests_only_what_may_be_there(name, given):
    with pytest.raises(attnloom.UnsupportedError, match=rf"^{name} .* is not one of float32, float16, bf") as caught:
        spec(**{name: given})
    assert "fp8" not in (said := str(caught.value).replace(repr(given), "")) and "float8" not in said


def test_equality_hash_and_repr():
    one = spec(variants=["causal", "soft-cap"], params={"soft-cap.cap": 30.0})
    two = spec(variants=["causal", "soft_cap"], params={"soft_cap.cap": 30.0})
    assert one == two and hash(one) == hash(two)
    assert one != two.evolve(params={"soft_cap.cap": 50.0})
    assert one != "spec" and spec() != spec(tile=Tile(16, 16))
    slopes = torch.ones(8)
    assert spec(params={"alibi.slopes": slopes}) == spec(params={"alibi.slopes": slopes.clone()})
    assert spec(params={"alibi.slopes": slopes}) != spec(params={"alibi.slopes": slopes * 2})
    assert "soft_cap" in repr(one) and "head_dim=64" in repr(one)


def test_pickles():
    made = spec(
        variants=[CAUSAL, "cap=soft_cap"], params={"cap.cap": 30.0, "alibi.slopes": torch.ones(8)}, tile=Tile(16, 32)
    )
    again = pickle.loads(pickle.dumps(made))
    assert again == made and hash(again) == hash(made)
    with_plugins = spec(plugins=PluginSet.from_config(Config.from_mapping({})))
    assert isinstance(pickle.loads(pickle.dumps(with_plugins)).plugins, PluginSet)


def test_parameters_are_read_only():
    given = {"soft_cap.cap": 30.0}
    made = spec(variants=["soft_cap"], params=given)
    with pytest.raises(TypeError):
        made.params["soft_cap.cap"] = 50.0
    given["soft_cap.cap"] = 50.0
    assert made.params == {"soft_cap.cap": 30.0} and "{'soft_cap.cap': 30.0}" in repr(made)
    other = made.evolve(params={**made.params, "soft_cap.cap": 50.0})
    assert other.params["soft_cap.cap"] == 50.0 and other != made
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made), made.evolve()):
        assert again == made and hash(again) == hash(made)
        with pytest.raises(TypeError):
            again.params["soft_cap.cap"] = 50.0


def test_lambdas_do_not_pickle_and_say_so():
    with pytest.raises(pickle.PicklingError, match=r"alibi\.slopes is .*<lambda>.*top level of a module"):
        pickle.dumps(spec(params={"alibi.slopes": lambda spec: 1}))


def test_from_stack():
    config = Config.from_mapping(
        {"stacks": {"gemma2": {"variants": ["causal", "soft_cap"], "params": {"soft_cap.cap": 50.0}}}}
    )
    plugins = PluginSet.from_config(config)
    heads = {"num_qo_heads": 8, "num_kv_heads": 4, "head_dim": 64, "plugins": plugins}
    made = AttentionSpec.from_stack("gemma2", **heads)
    assert made.variants == ("causal", "soft_cap") and made.params == {"soft_cap.cap": 50.0}
    other = AttentionSpec.from_stack("gemma2", params={"soft-cap.cap": 30.0}, **heads)
    assert other.params == {"soft_cap.cap": 30.0}
    with pytest.raises(attnloom.UnknownNameError, match="gemma2"):
        AttentionSpec.from_stack("gemma3", **heads)


def test_specs_with_tensors_on_a_device_are_equal_for_the_same_tensor():
    here, there = (torch.zeros(4, device="meta") for _ in range(2))
    made = [
        attnloom.AttentionSpec([], num_qo_heads=4, num_kv_heads=4, head_dim=16, params={"x.y": tensor})
        for tensor in (here, here, there)
    ]
    assert made[0] == made[1] != made[2]
