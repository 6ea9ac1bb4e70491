"""Parameter values: what is checked, what is computed, what a kernel is handed."""

import ctypes

import attrs
import numpy as np
import pytest
import torch
from attnloom.compose import compose
from attnloom.errors import ParamError
from attnloom.param_struct import tensor_ref
from attnloom.variant import Param, StaticParam, TensorParam

MASK = """struct {} {{
  template <class P> ATTNLOOM_FN bool logits_mask(const P&, const attnloom::Site&) const {{ return true; }}
}};"""
RANGE = """struct Pick {
  template <class P> ATTNLOOM_FN attnloom::Range kv_range(const P& p, const attnloom::Site& s) const {
    return {0, p.end(s.request)};
  }
};"""
EVERYTHING = [
    Param("ratio", default=0.5, doc="a ratio"),
    Param("count", int, default=2),
    Param("flag", bool, default=False),
    Param("mode", str, default="plain", host_only=True),
    Param("need", doc="what is needed"),
    StaticParam("width", int, default=4, choices=(4, 8)),
    TensorParam("table", shape=("num_qo_heads", "width//2")),
    TensorParam("words", dtype="uint32", shape=("*",)),
    TensorParam("level", shape=()),
]
GIVEN = {"all.need": 1.0, "all.table": np.zeros((6, 2), np.float32), "all.words": [1, 2, 3], "all.level": 7.0}


@pytest.fixture
def composition(plugins, spec):
    plugins.add("all", MASK.format("All"), functors={"logits_mask"}, params=EVERYTHING)
    return compose(["all"], spec=spec, plugins=plugins)


def refusal(composition, **changes):
    with pytest.raises(ParamError) as caught:
        composition.resolve({**GIVEN, **{f"all.{name}": value for name, value in changes.items()}})
    return str(caught.value)


def test_values_land_in_the_struct(composition):
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    bound = composition.resolve({**GIVEN, "all.table": table, "all.count": -7, "all.flag": True})
    own = bound.struct.all
    assert (own.ratio, own.count, own.flag, own.need) == (0.5, -7, True, 1.0)
    assert list(own.table.shape) == [6, 2] and list(own.table.stride) == [2, 1]
    assert own.table.data == table.ctypes.data
    assert ctypes.cast(own.words.data, ctypes.POINTER(ctypes.c_uint32))[:3] == [1, 2, 3]
    assert ctypes.cast(own.level.data, ctypes.POINTER(ctypes.c_float))[0] == 7.0
    assert bound.address == ctypes.addressof(bound.struct)
    assert bound.values["all.mode"] == "plain" and bound.values["all.width"] == 4


def test_unknown_names_come_with_near_ones(composition, plugins, spec):
    with pytest.raises(ParamError, match=r"unknown parameter 'all\.ratioo'; did you mean 'all\.ratio'\?"):
        composition.resolve({"all.ratioo": 1})
    with pytest.raises(ParamError, match=r"did you mean 'all\.ratio'"):
        composition.resolve({"ratio": 1})
    with pytest.raises(ParamError, match=r"this composition has all\.count"):
        composition.resolve({"zzz": 1})
    with pytest.raises(ParamError, match="causal takes no parameters"):
        compose(["causal"], spec=spec, plugins=plugins, params={"causal.x": 1})
    with pytest.raises(ParamError, match="unknown parameter 3"):
        composition.resolve({3: 1})


def test_names_accept_dashes(plugins, spec):
    bound = compose(["soft_cap"], spec=spec, plugins=plugins).resolve({"soft-cap.cap": 3})
    assert bound.values["soft_cap.cap"] == 3.0 and isinstance(bound.values["soft_cap.cap"], float)


def test_a_missing_parameter_says_what_it_is(composition):
    text = refusal(composition, need=None)
    assert "'all.need' (what is needed) has no default" in text and "params={'all.need': ...}" in text
    assert "'all.words' has no default" in refusal(composition, words=None)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ratio", "0.5", "must be a number, got '0.5' (str)"),
        ("ratio", True, "must be a number, got True (bool)"),
        ("ratio", float("nan"), "finite"),
        ("ratio", float("inf"), "finite"),
        ("ratio", 1e300, "finite float32"),
        ("ratio", torch.tensor(1.0), "must be a number"),
        ("count", 2.0, "must be an integer, got 2.0 (float)"),
        ("count", True, "must be an integer, got True (bool)"),
        ("count", 2**31, "32 bits"),
        ("flag", 1, "must be True or False, got 1 (int)"),
        ("mode", 3, "must be a string"),
        ("width", 5, "must be one of [4, 8], got 5"),
        ("width", 8, "compiled as 4 and now 8"),
    ],
)
def test_scalars_of_a_wrong_kind(composition, name, value, said):
    text = refusal(composition, **{name: value})
    assert f"'all.{name}'" in text and said in text


def without_memory(*shape):
    tensor = torch.zeros(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((6, 3), np.float32), "has shape [6, 3], expected [6, 2] = [num_qo_heads, width//2]"),
        (np.zeros(12, np.float32), "has shape [12], expected [6, 2]"),
        (np.zeros((6, 2)), "has dtype float64, expected float32"),
        (torch.zeros(6, 2, dtype=torch.bfloat16), "has dtype bfloat16, expected float32; use .to(torch.float32)"),
        (torch.zeros(6, 2, device="meta"), "is on meta, expected cpu"),
        (torch.zeros(6, 2).to_sparse(), "has layout torch.sparse_coo, use .to_dense()"),
        (without_memory(6, 2), "of shape [6, 2] has no memory"),
        ("text", "must be a tensor of float32"),
        ([[1, 2], [3]], "must be a tensor of float32"),
        (None, "has no default"),
    ],
)
def test_tensors_that_do_not_fit(composition, value, said):
    assert said in refusal(composition, table=value)


def test_lists_convert_only_without_loss(composition):
    assert "must be a tensor of uint32" in refusal(composition, words=[1.5])
    assert "must be a tensor of uint32" in refusal(composition, words=[-1])
    assert "must be a tensor of uint32" in refusal(composition, words=[2**32])
    assert composition.resolve({**GIVEN, "all.words": [2**32 - 1]}).values["all.words"].numpy().tolist() == [2**32 - 1]
    assert composition.resolve({**GIVEN, "all.words": []}).values["all.words"].shape == (0,)


def test_strides_of_any_kind_are_kept(composition):
    view = torch.arange(48, dtype=torch.float32).reshape(2, 24).t()[::4]
    bound = composition.resolve({**GIVEN, "all.table": view})
    ref = bound.struct.all.table
    assert tuple(ref.stride) == view.stride() and ref.data == view.data_ptr()
    flipped = np.arange(12, dtype=np.float32).reshape(6, 2)[::-1]
    ref = composition.resolve({**GIVEN, "all.table": flipped}).struct.all.table
    assert list(ref.stride) == [-2, 1] and ref.data == flipped.ctypes.data


def test_tensors_stay_alive_and_are_not_copied(composition):
    table = torch.full((6, 2), 3.0)
    bound = composition.resolve({**GIVEN, "all.table": table})
    table.fill_(4.0)
    assert (bound.namespace("all").table == 4.0).all()
    pointer = bound.struct.all.table.data
    del table
    assert ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))[:12] == [4.0] * 12


def test_parameters_that_require_grad_are_accepted(composition):
    bound = composition.resolve({**GIVEN, "all.table": torch.nn.Parameter(torch.ones(6, 2))})
    assert bound.namespace("all").table.sum() == 12


def test_replace_changes_only_what_is_named(composition):
    bound = composition.resolve(GIVEN)
    other = bound.replace({"all.ratio": 0.25})
    assert (bound.struct.all.ratio, other.struct.all.ratio) == (0.5, 0.25)
    assert other.struct.all.table.data == bound.struct.all.table.data
    assert bound.replace(None) is bound and bound.replace({}) is bound
    with pytest.raises(ParamError, match="compile-time constant"):
        bound.replace({"all.width": 8})
    with pytest.raises(ParamError, match="did you mean"):
        bound.replace({"all.ratoi": 8})


def test_host_only_values_recompute_what_depends_on_them(plugins, spec):
    bound = compose(["rope", "soft_cap"], spec=spec, plugins=plugins).resolve({"rope.theta": 100.0})
    other = bound.replace({"rope.theta": 10000.0})
    assert other.namespace("rope").inv_freq[1] == pytest.approx(10000 ** (-1 / 8))
    assert bound.namespace("rope").inv_freq[1] == pytest.approx(100 ** (-1 / 8))
    kept = other.replace({"rope.offset": 2})
    assert kept.namespace("rope").inv_freq[1] == other.namespace("rope").inv_freq[1] and kept.struct.rope.offset == 2


def test_a_default_that_fails_names_its_plugin(plugins, spec):
    plugins.add(
        "odd", MASK.format("Odd"), functors={"logits_mask"}, params=[TensorParam("t", shape=(2,), computed="math:sqrt")]
    )
    with pytest.raises(ParamError, match=r"'odd\.t': its default, math:sqrt of dist-odd, failed"):
        compose(["odd"], spec=spec, plugins=plugins).resolve()


def test_planned_parameters_are_those_that_ranges_read(plugins, spec):
    composition = compose(["causal", "sliding_window", "soft_cap"], spec=spec, plugins=plugins)
    bound = composition.resolve({"sliding_window.left": 5})
    assert bound.planned == (("sliding_window.left", 5), ("sliding_window.right", -1))
    assert bound.replace({"soft_cap.cap": 2}).planned == bound.planned
    assert bound.replace({"sliding_window.left": 6}).planned != bound.planned


def test_planned_tensors_compare_by_content(plugins, spec):
    plugins.add("pick", RANGE, functors={"kv_range"}, params=[TensorParam("end", dtype="int32", shape=("*",))])
    composition = compose(["pick"], spec=spec, plugins=plugins)
    one, two, three = (composition.resolve({"pick.end": ends}).planned for ends in ([1, 2], [1, 2], [1, 3]))
    assert one == two != three and hash(one) == hash(two)


def test_a_tensor_ref_of_no_dimensions_is_a_pointer():
    assert ctypes.sizeof(tensor_ref(0)) == 8 and ctypes.sizeof(tensor_ref(2)) == 40


@pytest.mark.parametrize("fault", ["raise SystemExit(3)", "raise ZeroDivisionError('none')", "return [[1], [2, 3]]"])
@pytest.mark.parametrize("where", ["scalar", "tensor", "check", "static check"])
def test_code_of_a_plugin_that_fails_is_named(plugins, spec, tmp_path, monkeypatch, fault, where):
    module = f"faulty_{where.replace(' ', '_')}_{abs(hash(fault))}"
    (tmp_path / f"{module}.py").write_text(f"def make(spec, params):\n    {fault}\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = f"{module}:make"
    params = {
        "scalar": [Param("a", computed=made)],
        "tensor": [TensorParam("a", shape=(2,), computed=made)],
        "static check": [StaticParam("a", default=1, check=made)],
    }
    fields = {"params": params.get(where, []), "check": made if where == "check" else None}
    plugins.add("faulty", MASK.format("Faulty"), functors={"logits_mask"}, **fields)
    if "check" in where and fault.startswith("return"):
        compose(["faulty"], spec=spec, plugins=plugins).resolve({})
        return
    with pytest.raises(ParamError, match="faulty"):
        compose(["faulty"], spec=spec, plugins=plugins).resolve({})


def test_a_static_value_is_held_to_the_spec_before_there_is_any_text(plugins, spec):
    def check(spec, params):
        if params["width"] > spec.head_dim:
            raise ParamError(f"width is at most {spec.head_dim}, got {params['width']}, {params['step']} a step")

    statics = [StaticParam("width", default=8, check=check), StaticParam("step", computed=lambda spec, params: 3)]
    plugins.add("wide", MASK.format("Wide"), functors={"logits_mask"}, params=statics)
    assert compose(["wide"], spec=spec, plugins=plugins).members[0].statics == {"width": 8, "step": 3}
    with pytest.raises(ParamError, match="at most 16, got 17, 3 a step"):
        compose(["wide"], spec=spec, plugins=plugins, params={"wide.width": 17})


@pytest.mark.parametrize("value", [10**400, -(10**400), 2**200])
def test_integers_that_no_float_holds(composition, value):
    assert f"integer of {value.bit_length()} bits" in refusal(composition, need=value)


def test_a_check_tells_which_alias_it_is_of(plugins, spec):
    for name, alias in ("soft_cap", ""), ("soft_cap", "'other', which is 'soft_cap': "):
        variant = f"other={name}" if alias else name
        key = "other.cap" if alias else "soft_cap.cap"
        with pytest.raises(ParamError, match=f"^{alias}soft_cap.cap must be positive, got -1.0"):
            compose([variant], spec=spec, plugins=plugins).resolve({key: -1.0})


@pytest.mark.parametrize("given", [{}, {"rope.rotary_dim": 5}, {"rope.partial": 0.2}])
def test_rope_tells_whence_an_odd_number_of_elements_is(plugins, spec, given):
    spec = attrs.evolve(spec, head_dim=15)
    got = given.get("rope.rotary_dim", int(15 * given.get("rope.partial", 1.0)))
    with pytest.raises(ParamError, match=f"even and at most head_dim 15, got {got}") as fault:
        compose(["rope"], spec=spec, plugins=plugins, params=given)
    assert ("rope.partial of" in str(fault.value)) == ("rope.rotary_dim" not in given)
