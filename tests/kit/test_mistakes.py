"""What authors get wrong, and what they are told: one message with the plugin, the file and line, and what to do."""

from __future__ import annotations

import re

import attnloom
import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.errors import AttnloomError
from attnloom.testing.functors import FunctorSpec


def mistake(name, kind, *says, edits=(), **metadata):
    """A plugin's name, what it starts from, patterns of what must be said, and what is changed in it."""
    return pytest.param((name, kind, *says), {"edits": edits, **metadata}, id=name)


LOADING = [
    mistake(
        "missing_module",
        "variant",
        "names the module 'attnloom_missing_module.plugins'",
        "spell it in pyproject",
        module="attnloom_missing_module.plugins",
    ),
    mistake(
        "missing_package",
        "variant",
        "there is no 'attnloom_nowhere'",
        "let the wheel hold it",
        module="attnloom_nowhere.plugin",
    ),
    mistake(
        "missing_library",
        "variant",
        r"No module named 'cupyx'",
        r"plugin\.py:1",
        "in the dependencies of its pyproject",
        edits=[("plugin.py", '"""The', 'import cupyx\n"""The')],
    ),
    mistake(
        "python_syntax", "variant", "SyntaxError", r"plugin\.py:\d+", edits=[("plugin.py", "Variant(\n", "Variant((\n")]
    ),
    mistake(
        "raises_at_import",
        "variant",
        "ZeroDivisionError",
        r"plugin\.py:2",
        edits=[("plugin.py", "\n", "\nRATE = 1 / 0\n")],
    ),
    mistake(
        "exits_at_import",
        "variant",
        "SystemExit",
        r"plugin\.py:2",
        edits=[("plugin.py", "\n", "\nraise SystemExit(3)\n")],
    ),
    mistake(
        "forgot_hookimpl",
        "variant",
        "declares variant 'forgot_hookimpl'",
        "not marked with @hookimpl",
        edits=[("plugin.py", "@hookimpl\n", "")],
    ),
    mistake(
        "misspelt_hook",
        "variant",
        "unknown hook 'attnloom_variant'",
        "did you mean 'attnloom_variants'",
        edits=[("plugin.py", "def attnloom_variants", "def attnloom_variant")],
    ),
    mistake(
        "returns_one",
        "variant",
        "must return an iterable of descriptors",
        edits=[("plugin.py", "return [@NAME@]", "return @NAME@")],
    ),
    mistake(
        "returns_a_name",
        "variant",
        "returned 'returns_a_name', which is no Variant",
        edits=[("plugin.py", "return [@NAME@]", "return ['returns_a_name']")],
    ),
    mistake(
        "hook_raises",
        "variant",
        "attnloom_variants raised KeyError: 'nope'",
        r"plugin\.py:\d+",
        edits=[("plugin.py", "return [@NAME@]", "return [{}['nope']]")],
    ),
    mistake(
        "undeclared",
        "variant",
        "metadata does not declare",
        "variant 'another'",
        edits=[("plugin.py", 'name="undeclared"', 'name="another"')],
    ),
    mistake(
        "unknown_functor",
        "variant",
        r"unknown functor\(s\) \['logit_transform'\]",
        "the contract has",
        r"plugin\.py:\d+",
        edits=[("plugin.py", '"logits_transform"', '"logit_transform"')],
    ),
    mistake(
        "no_functor",
        "variant",
        "defines no functor",
        r"plugin\.py:\d+",
        edits=[("plugin.py", '{"logits_transform"}', "set()")],
    ),
    mistake(
        "reserved_parameter",
        "variant",
        "'float' is a reserved word of C\\+\\+ or Python",
        r"plugin\.py:\d+",
        edits=[("plugin.py", 'Param("rate"', 'Param("float"')],
    ),
    mistake(
        "twice_the_parameter",
        "variant",
        "duplicate parameter names",
        r"plugin\.py:\d+",
        edits=[("plugin.py", "params=[", 'params=[Param("rate"), ')],
    ),
    mistake(
        "unknown_type",
        "variant",
        "type must be float, int, bool or str",
        r"plugin\.py:\d+",
        edits=[("plugin.py", '"rate", float', '"rate", complex')],
    ),
    mistake(
        "injected",
        "variant",
        "is not a C\\+\\+ identifier",
        r"plugin\.py:\d+",
        edits=[("plugin.py", 'struct="', 'struct="A; int main() {} struct ')],
    ),
    mistake(
        "header_outside",
        "variant",
        "must be a relative path",
        r"plugin\.py:\d+",
        edits=[("plugin.py", 'header="', 'header="../')],
    ),
    mistake(
        "future_abi", "variant", "functor contract 7", "this attnloom's is 1", edits=[("plugin.py", "abi=1", "abi=7")]
    ),
    mistake(
        "for_another_core",
        "variant",
        "needs attnloom>=9",
        f"attnloom {attnloom.__version__}",
        requires="attnloom>=9,<10",
    ),
    mistake(
        "unknown_kind",
        "variant",
        "unknown kind 'variants'",
        "did you mean 'variant'",
        provides=("variants.unknown_kind",),
    ),
]


@pytest.mark.parametrize(("wrong", "changes"), LOADING)
def test_plugins_that_cannot_be_loaded(made, told, wrong, changes):
    text = told(lambda: made.plugins(enable=[wrong[0]]).variant(wrong[0]), *wrong, **changes)
    assert f"attnloom-{wrong[0].replace('_', '-')} 0.1.0" in text and text.count("\n") == 0


def test_a_name_of_the_core(made):
    made.add("greedy", "variant", provides=("variant.greedy", "variant.causal"))
    with pytest.raises(AttnloomError, match=r"greedy \(attnloom-greedy 0\.1\.0\).*variant 'causal', a name reserved"):
        made.plugins(enable=["greedy"]).variant("greedy")


def test_a_name_that_is_taken(made):
    made.add("first", "variant")
    made.install(made.add("second", "variant"), "variant", provides=("variant.first",), distribution="second-again")
    with pytest.raises(AttnloomError) as caught:
        made.plugins().variant("first")
    text = str(caught.value)
    assert "attnloom-first 0.1.0" in text and "second-again 0.1.0" in text
    assert 'choose one in [prefer] of the configuration: "variant:first"' in text


def test_a_header_that_is_not_in_the_package(made):
    made.add("no_header", "variant", ("plugin.py", 'header="no_header.h"', 'header="nowhere.h"'))
    with pytest.raises(AttnloomError, match=r"variant 'no_header'.*nowhere\.h.*in the wheel\?"):
        compose(["no_header"], spec=FunctorSpec(), plugins=made.plugins())


USE = {
    "a parameter that is unknown": ({"used.rats": 1.0}, r"unknown parameter 'used\.rats'; did you mean 'used\.rate'\?"),
    "a parameter of another type": ({"used.rate": "fast"}, r"'used\.rate' must be a number, got 'fast'"),
    "a parameter that is no number": ({"used.rate": float("nan")}, r"'used\.rate' must be a finite float32"),
}


@pytest.mark.parametrize("about", USE)
def test_parameters_that_users_give_wrong(made, about):
    made.add("used", "variant")
    params, says = USE[about]
    with pytest.raises(AttnloomError, match=says):
        compose(["used"], spec=FunctorSpec(), plugins=made.plugins()).resolve(params)


def test_a_required_parameter_and_a_wrong_shape(made):
    made.add("needy", "window", ("plugin.py", 'shape=("*",)', 'shape=("num_qo_heads",)'))
    composition = compose(["needy"], spec=FunctorSpec(), plugins=made.plugins())
    with pytest.raises(AttnloomError, match=r"'needy\.weights' \(Logit of each key\.\) has no default; give params="):
        composition.resolve()
    with pytest.raises(AttnloomError, match=r"'needy\.weights' has shape \[3\], expected \[4\] = \[num_qo_heads\]"):
        composition.resolve({"needy.weights": np.zeros(3, np.float32)})


def test_a_default_that_raises(made):
    made.add(
        "sum", "variant",
        ("plugin.py", "default=0.05", 'computed="@package@.reference:rate"'),
        ("reference.py", "import numpy as np\n", "import numpy as np\n\ndef rate(spec, params):\n    return 1 / 0\n"),
    )  # fmt: skip
    with pytest.raises(
        AttnloomError, match=r"'sum\.rate'.*attnloom_sum\.reference:rate of attnloom-sum.*reference\.py:\d+"
    ):
        compose(["sum"], spec=FunctorSpec(), plugins=made.plugins()).resolve()


def test_a_shape_that_means_nothing(made):
    made.add("shapeless", "window", ("plugin.py", 'shape=("*",)', 'shape=("num_keys",)'))
    with pytest.raises(AttnloomError, match=r"'shapeless' of attnloom-shapeless: dimension 'num_keys' of tensor"):
        compose(["shapeless"], spec=FunctorSpec(), plugins=made.plugins())


BUILDERS = {
    "a builder in a missing module": (("plugin.py", ".build:", ".builder:"), r"attnloom_built\.builder"),
    "a builder that is missing": (("plugin.py", ":build_index", ":build"), r"has no attribute 'build'"),
    "a builder that returns a list": (
        ("build.py", "def build_index", "def build_index(*lens, pages):\n    return []\n\n\ndef another"),
        r"attnloom_built\.build:build_index returned list, expected ComposedIndex",
    ),
}


@pytest.mark.parametrize("about", BUILDERS)
def test_builders_that_are_not_there(made, about):
    edit, says = BUILDERS[about]
    made.add("built", "storage_format", edit)
    storage_format = made.plugins().storage_format("built")
    with pytest.raises(AttnloomError, match=rf"(?s)storage format 'built'.*{says}"):
        storage_format.build_index([1], [2], 2, pages=[[0]])


CHOOSERS = {
    "a rule in a missing module": ("plugin.py", ".choose:", ".rules:"),
    "a rule that returns a pair": ("choose.py", "    keys =", "    return 16, 64\n    keys ="),
    "a rule that raises": ("choose.py", "    keys =", "    {}['x']\n    keys ="),
}


@pytest.mark.parametrize("about", CHOOSERS)
def test_rules_that_fail_leave_the_choice_to_the_core_and_say_so(made, about, caplog, recwarn):
    made.add("ruled", "tile_heuristic", CHOOSERS[about])
    spec = attnloom.AttentionSpec(
        [], num_qo_heads=4, num_kv_heads=2, head_dim=16, dtype="float32", tile="ruled", plugins=made.plugins()
    )
    tiles = attnloom.explain(spec, compile=False).data["tiles"]
    said = " ".join([*tiles["why"], caplog.text, *(str(warning.message) for warning in recwarn)])
    assert "ruled" in said and "short" in tiles


def test_a_reference_that_disagrees(made):
    from attnloom.testing import VariantSuite, run_suite

    made.add("disagrees", "variant", ("reference.py", "return x - p.rate", "return x + p.rate"))
    suite = type("Suite", (VariantSuite,), {"variant": "disagrees"})
    (outcome,) = run_suite(suite, ("functors_agree_with_the_reference",))
    assert outcome.status == "failed"
    assert re.search(r"disagrees.*disagrees\.h.*reference\.py", outcome.message), outcome.message
