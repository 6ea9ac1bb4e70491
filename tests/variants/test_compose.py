"""Order, conflicts and the generated text."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.errors import CompositionError, ParamError, UnknownNameError
from attnloom.testing.functors import CompiledFunctors, FunctorSpec, random_sites
from attnloom.variant import Param, StaticParam, TensorParam, Variant
from attrs import evolve

LOGITS = """struct {name} {{
  template <class P> ATTNLOOM_FN float logits_transform(const P& p, float x, const attnloom::Site&) const {{
    return {body};
  }}
}};"""
MODULO = """struct {0} {{
  template <class P> ATTNLOOM_FN bool logits_mask(const P&, const attnloom::Site& s) const {{
    return s.kv_index % {1} == 0;
  }}
}};"""
INIT = """struct {0} {{
  template <class P> ATTNLOOM_FN attnloom::RowInit row_init(const P& p, const attnloom::Site&) const {{
    return {{p.m, p.d}};
  }}
}};"""
KEYS = """struct {0} {{
  template <class P, class R> ATTNLOOM_FN void key_transform(const P&, R& row, const attnloom::Site& s) const {{
    row.each([&](int d, float& x) {{ {1}; }});
  }}
}};"""


def add_logits(plugins, name, body, **fields):
    struct = "".join(part.title() for part in name.split("_"))
    return plugins.add(name, LOGITS.format(name=struct, body=body), functors={"logits_transform"}, **fields)


def refusal(variants, spec, plugins) -> str:
    with pytest.raises(CompositionError) as caught:
        compose(variants, spec=spec, plugins=plugins)
    return str(caught.value)


def test_transforms_chain_in_the_listed_order(plugins, spec):
    add_logits(plugins, "plus", "x + p.amount", params=[Param("amount", default=3.0)])
    add_logits(plugins, "times", "x * p.amount", params=[Param("amount", default=2.0)])
    sites = random_sites(np.random.default_rng(0), 4, spec)
    for order, want in ((["plus", "times"], lambda x: (x + 3) * 2), (["times", "plus"], lambda x: x * 2 + 3)):
        compiled = CompiledFunctors(compose(order, spec=spec, plugins=plugins))
        np.testing.assert_array_equal(compiled.logits(np.arange(4), sites), want(np.arange(4)))


def test_row_transforms_chain_and_round_once(plugins, spec):
    plugins.add("plus", KEYS.format("Plus", "x += d + s.kv_index"), functors={"key_transform"})
    plugins.add("times", KEYS.format("Times", "x *= 2"), functors={"key_transform"})
    sites = random_sites(np.random.default_rng(0), 3, spec)
    got = CompiledFunctors(compose(["plus", "times"], spec=spec, plugins=plugins)).rows(
        "key_transform", np.ones((3, 16)), sites
    )
    np.testing.assert_array_equal(got, (1 + np.arange(16) + sites.kv_index[:, None]) * 2)


def test_masks_are_anded(plugins, spec):
    plugins.add("even", MODULO.format("Even", 2), functors={"logits_mask"})
    plugins.add("third", MODULO.format("Third", 3), functors={"logits_mask"})
    sites = random_sites(np.random.default_rng(0), 200, spec)
    got = CompiledFunctors(compose(["even", "third"], spec=spec, plugins=plugins)).keeps(sites)
    np.testing.assert_array_equal(got, sites.kv_index % 6 == 0)


def test_several_row_inits_join(plugins, spec):
    for name in ("one", "two"):
        plugins.add(name, INIT.format(name.title()), functors={"row_init"}, params=[Param("m"), Param("d")])
    sites = random_sites(np.random.default_rng(0), 1, spec)
    composition = compose(["one", "two"], spec=spec, plugins=plugins)
    params = {"one.m": 1.0, "one.d": 1.0, "two.m": 3.0, "two.d": 2.0}
    m, d = CompiledFunctors(composition, params).row_init(sites)[0]
    assert m == 3.0 and d == pytest.approx(2 + np.exp(-2.0), rel=1e-6)
    assert CompiledFunctors(compose([], spec=spec, plugins=plugins)).row_init(sites)[0].tolist() == [-np.inf, 0]


def test_one_variant_twice_under_an_alias_has_its_own_parameters(plugins, spec):
    add_logits(plugins, "plus", "x + p.amount", params=[Param("amount", default=1.0), StaticParam("mode", default=0)])
    composition = compose(["plus", "more=plus"], spec=spec, plugins=plugins, params={"more.mode": 7})
    assert [member.alias for member in composition.members] == ["plus", "more"]
    assert "mode = 0;" in composition.source and "mode = 7;" in composition.source
    assert composition.source.count('#include "plus.h"') == 1
    compiled = CompiledFunctors(composition, {"plus.amount": 10.0, "more.amount": 100.0})
    assert compiled.logits([1.0], random_sites(np.random.default_rng(0), 1, spec)) == [111.0]


def test_names_accept_dashes_and_capitals(spec, plugins):
    assert compose(["Soft-Cap"], spec=spec, plugins=plugins).members[0].alias == "soft_cap"


def test_an_empty_list_composes(plugins, spec):
    composition = compose([], spec=spec, plugins=plugins)
    assert composition.functors == frozenset() and composition.use_softmax and not composition.has_range
    x = np.arange(3, dtype=np.float32)
    compiled = CompiledFunctors(composition)
    np.testing.assert_array_equal(compiled.logits(x, random_sites(np.random.default_rng(0), 3, spec)), x)


def test_a_duplicate_is_refused_with_the_fix(plugins, spec):
    assert "'other=soft_cap'" in refusal(["soft_cap", "soft_cap"], spec, plugins)
    assert "'a' is listed twice (attnloom-soft-cap and attnloom-alibi)" in refusal(
        ["a=soft_cap", "a=alibi"], spec, plugins
    )


@pytest.mark.parametrize("alias", ["3=alibi", "int=alibi", "a.b=alibi", "=alibi"])
def test_an_alias_must_be_an_identifier(plugins, spec, alias):
    assert "alias" in refusal([alias], spec, plugins)


def test_two_rotations_are_refused(plugins, spec):
    text = refusal(["rope", "again=rope"], spec, plugins)
    assert "two rotations" in text and "'again' (attnloom-rope)" in text


def test_softmax_opinions_must_agree(plugins, spec):
    add_logits(plugins, "firm", "x", use_softmax=True)
    text = refusal(["firm", "sigmoid"], spec, plugins)
    assert "'firm' (dist-firm)" in text and "'sigmoid' (attnloom-sigmoid)" in text and "disagree" in text
    assert "disagree" in refusal(["sigmoid", "sinks"], spec, plugins)
    assert compose(["causal", "soft_cap", "sigmoid"], spec=spec, plugins=plugins).use_softmax is False


def test_row_init_needs_softmax(plugins, spec):
    plugins.add("late", "struct Late {};", functors={"row_init"})
    assert "row_init joins a softmax" in refusal(["late", "sigmoid"], spec, plugins)


def test_declared_conflicts_work_both_ways(plugins, spec):
    add_logits(plugins, "loner", "x", conflicts={"alibi"})
    for order in (["loner", "alibi"], ["alibi", "loner"]):
        text = refusal(order, spec, plugins)
        assert "dist-loner" in text and "attnloom-alibi" in text and "says dist-loner" in text


def test_another_abi_is_refused_with_both_versions(plugins, spec):
    add_logits(plugins, "old", "x", abi=99)
    text = refusal(["old"], spec, plugins)
    assert "version 99" in text and "dist-old" in text and "has version 1" in text


def test_equal_struct_or_header_names_are_refused(plugins, spec):
    add_logits(plugins, "one", "x")
    plugins.add("two", LOGITS.format(name="One", body="x"), struct="One", functors={"logits_transform"})
    assert "both call their struct 'One'" in refusal(["one", "two"], spec, plugins)
    plugins.add("three", LOGITS.format(name="Three", body="x"), header="one.h", functors={"logits_transform"})
    assert "both have a header 'one.h'" in refusal(["one", "three"], spec, plugins)


def test_a_missing_header_is_named(plugins, spec):
    variant = add_logits(plugins, "gone", "x")
    (plugins.header_dir(variant) / "gone.h").unlink()
    assert "'gone.h' is not in" in refusal(["gone"], spec, plugins)


def test_a_shape_that_means_nothing_is_refused(plugins, spec):
    for dim in ("heads", "num_qo_heads*2", "dtype"):
        add_logits(plugins, "odd", "x", params=[TensorParam("t", shape=(dim,))])
        assert f"dimension {dim!r}" in refusal(["odd"], spec, plugins)


def test_unknown_variants_are_the_plugin_sets_business(plugins, spec):
    with pytest.raises(UnknownNameError, match="soft_cap"):
        compose(["soft_cab"], spec=spec, plugins=plugins)


def test_entries_of_another_kind_are_refused(plugins, spec):
    assert "got 3" in refusal([3], spec, plugins)


def test_a_descriptor_object_needs_no_plugin(plugins, spec):
    variant = add_logits(plugins, "mine", "x + 1")
    composition = compose([variant], spec=spec, plugins=plugins)
    assert composition.members[0].provider is None
    assert "name the import package" in refusal([evolve(variant, package=None)], spec, plugins)


def test_scalars_and_tensors_never_change_the_text_but_statics_do(plugins):
    def text(params):
        return compose(["rope", "soft_cap"], spec=FunctorSpec(params=params), plugins=plugins).source

    plain = text({})
    assert text({"soft_cap.cap": 30.0, "rope.theta": 5e5, "rope.offset": 3}) == plain
    assert text({"rope.rotary_dim": 32}) != plain
    assert text({"rope.partial": 0.5}) == text({"rope.rotary_dim": 32})
    assert text({"rope.interleaved": True}) != plain


def test_statics_of_a_wrong_kind_are_refused(plugins, spec):
    for params in ({"rope.rotary_dim": 3.5}, {"rope.interleaved": 1}, {"rope.rotary_dim": True}):
        with pytest.raises(ParamError):
            compose(["rope"], spec=spec, plugins=plugins, params=params)


def test_the_text_is_the_same_in_every_process(tmp_path):
    script = (
        "from attnloom.compose import compose\nfrom attnloom.plugins import PluginSet\n"
        "from attnloom.testing.functors import FunctorSpec\n"
        "print(compose(['causal', 'rope', 'qk_norm', 'alibi', 'soft_cap', 'bit_mask'], spec=FunctorSpec(), "
        "plugins=PluginSet.default()).source)"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "7")
    }
    assert len(texts) == 1 and str(tmp_path.root) not in {line for text in texts for line in text.splitlines()}


def test_no_path_of_this_machine_enters_the_text(plugins, spec):
    composition = compose(["causal", "soft_cap"], spec=spec, plugins=plugins)
    assert all(str(folder) not in composition.source for folder in composition.include_dirs)


def test_owners_and_explanation_name_the_plugins(plugins, spec):
    composition = compose(["causal", "rope", "cap=soft_cap"], spec=spec, plugins=plugins)
    assert set(composition.owners.values()) == {"attnloom", "attnloom-rope", "attnloom-soft-cap"}
    explained = composition.explain()
    assert explained["functors"]["logits_transform"] == ["cap"]
    assert explained["variants"][1]["statics"] == {"interleaved": False, "rotary_dim": 16}
    assert explained["variants"][2]["distribution"] == "attnloom-soft-cap"
    assert composition.functors == {"kv_range", "query_transform", "key_transform", "logits_transform"}


@pytest.mark.parametrize(
    "fields",
    [
        {"struct": "Bad; int x"},
        {"struct": "class"},
        {"header": "../x.h"},
        {"header": "/etc/x.h"},
        {"header": 'x".h'},
        {"functors": {"logit_transform"}},
        {"functors": set()},
        {"reference": "no_attr"},
        {"params": [Param("a"), Param("a")]},
        {"name": "Rope"},
        {"name": "int"},
    ],
)
def test_descriptors_that_cannot_enter_cpp_are_refused(fields):
    good = {"name": "x", "struct": "X", "header": "x.h", "functors": {"logits_mask"}, "reference": "a:B"}
    Variant(**good)
    with pytest.raises(CompositionError):
        Variant(**{**good, **fields})


def test_an_incomplete_spec_is_enough(plugins):
    spec = SimpleNamespace(num_qo_heads=3, num_kv_heads=1, head_dim=8, head_dim_v=8)
    assert compose(["alibi"], spec=spec, plugins=plugins).resolve().values["alibi.slopes"].shape == (3,)


def test_a_kernel_reads_no_strings():
    with pytest.raises(CompositionError, match="host_only=True"):
        Param("mode", str)


def test_a_variant_of_statics_alone_composes(plugins, spec):
    add_logits(plugins, "step", "x + P::reserved", params=[StaticParam("reserved", default=2)])
    composition = compose(["causal", "step", "plain=alibi"], spec=spec, plugins=plugins)
    compiled = CompiledFunctors(composition, {"plain.slopes": np.zeros(6, np.float32)})
    assert compiled.logits([1.0], random_sites(np.random.default_rng(0), 1, spec)) == [3.0]
