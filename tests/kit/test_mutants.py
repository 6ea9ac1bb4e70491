"""The kit tests itself: each of these plugins is wrong in one thing, and the check that is named here says so.

A line is the plugin's name, what it starts from, the check, a part of what it must say, and the edits.
"""

from __future__ import annotations

import textwrap

import pytest
from attnloom.testing import HooksSuite, VariantSuite, run_suite

VARIANTS = [
    (
        "range_off_by_one",
        "window",
        "kv_range_agrees_with_the_mask",
        "differs from the reference's",
        (".h", "return {s.q_pos - p.left, s", "return {s.q_pos - p.left + 1, s"),
    ),
    (
        "range_and_reference_off_by_one",
        "window",
        "kv_range_agrees_with_the_mask",
        "which kv_range leaves out",
        (".h", "return {s.q_pos - p.left, s", "return {s.q_pos - p.left + 1, s"),
        ("reference.py", "pos - p.left, pos + 1", "pos - p.left + 1, pos + 1"),
    ),
    (
        "monotone_is_a_lie",
        "window",
        "kv_range_agrees_with_the_mask",
        "says range_monotone",
        (".h", "return {s.q_pos - p.left, s.q_pos + 1}", "return {s.q_pos % 5 - 9, s.q_pos + 1}"),
        ("reference.py", "pos - p.left, pos + 1", "pos % 5 - 9, pos + 1"),
    ),
    (
        "uniform_is_a_lie",
        "window",
        "kv_range_agrees_with_the_mask",
        "says range_head_uniform",
        (".h", "return {s.q_pos - p.left, s", "return {s.q_pos - p.left - s.qo_head, s"),
        ("reference.py", "pos - p.left, pos + 1", "pos - p.left - site.qo_head, pos + 1"),
    ),
    (
        "mask_forgets_a_head",
        "window",
        "functors_agree_with_the_reference",
        "logits_mask",
        (".h", "(s.qo_head % 2 == 0 || s.kv_pos % 2 == 0)", "(s.qo_head != 1 || s.kv_pos % 2 == 0)"),
    ),
    (
        "reads_past_kv_len",
        "window",
        "functors_agree_with_the_reference",
        "logits_transform",
        (".h", "p.weights(s.kv_index)", "p.weights(s.kv_index + (s.kv_index == s.kv_len - 1))"),
    ),
    (
        "wrong_reference",
        "window",
        "functors_agree_with_the_reference",
        "logits_transform",
        ("reference.py", "return x + p.weights", "return x - p.weights"),
    ),
    (
        "keeps_a_count",
        "window",
        "functors_agree_with_the_reference",
        "logits_transform",
        (".h", "return logit + ", "static int calls = 0;\n    return logit * (calls++ % 2) + "),
    ),
    (
        "reference_sees_the_batch",
        "window",
        "reference_agrees_with_the_dense_oracle",
        "not vectorised right",
        ("reference.py", "return x + p.weights", "return x - x.sum() + p.weights"),
    ),
    (
        "reference_changes_its_input",
        "window",
        "reference_agrees_with_the_dense_oracle",
        "not vectorised right",
        ("reference.py", "return near &", "site.kv_pos[...] += 1\n        return near &"),
    ),
    (
        "no_method",
        "window",
        "parameters_are_described",
        "has no method for ['logits_mask']",
        ("reference.py", "def logits_mask", "def mask"),
    ),
    (
        "no_doc",
        "window",
        "descriptor",
        "has no doc",
        ("plugin.py", '    doc="A window, of even positions alone on odd heads, with a weight for each key.",\n', ""),
    ),
    (
        "undescribed_parameter",
        "window",
        "parameters_are_described",
        "undescribed_parameter.left has no doc",
        ("plugin.py", "Older positions that a query sees.", " "),
    ),
    (
        "default_of_another_type",
        "window",
        "parameters_are_described",
        "is a int, its default is 7.5",
        ("plugin.py", "default=7,", "default=7.5,"),
    ),
    (
        "no_example",
        "window",
        "functors_agree_with_the_reference",
        "can be made up; give",
        ("plugin.py", '    example="@package@.example:example",\n', ""),
    ),
    (
        "heavy_import",
        "variant",
        "import_is_light",
        "imports numpy",
        ("plugin.py", "from attnloom import hookimpl", "import numpy\nfrom attnloom import hookimpl"),
    ),
    (
        "talks_at_import",
        "variant",
        "import_is_light",
        "prints 'hello",
        ("plugin.py", "from attnloom import hookimpl", "print('hello')\nfrom attnloom import hookimpl"),
    ),
    (
        "order_of_a_set",
        "variant",
        "hash_seeds_change_nothing",
        "PYTHONHASHSEED",
        (
            "plugin.py",
            'params=[Param("rate"',
            'params=[*(Param(n, int, default=1, doc=n) for n in set("abcdefgh")), Param("rate"',
        ),
    ),
    (
        "pollutes_others",
        "window",
        "composes_in_both_orders",
        "do not compile together",
        (".h", "namespace @package@ {", "#define causal not_causal(\nnamespace @package@ {"),
    ),
    (
        "host_only_function",
        "window",
        "compiles_for_devices",
        "does not compile for devices",
        (".h", "  template <class P>\n  ATTNLOOM_FN bool", "  template <class P>\n  bool"),
    ),
]


@pytest.mark.parametrize("wrong", VARIANTS, ids=lambda wrong: wrong[0])
def test_each_mistake_is_caught_by_the_check_for_it(caught, wrong):
    caught(VariantSuite, *wrong)


def test_a_right_plugin_passes_what_the_wrong_ones_fail(made):
    made.add("right", "window")
    suite = type("Suite", (VariantSuite,), {"variant": "right"})
    checks = sorted({check for _, _, check, *_ in VARIANTS})
    outcomes = list(run_suite(suite, tuple(checks)))
    assert sorted(outcome.check for outcome in outcomes) == checks
    bad = [f"{one.check}: {one.message}" for one in outcomes if one.status not in ("passed", "skipped")]
    assert not bad, bad


PYTHON = """
from attnloom import hookimpl
from attnloom.variant import Param, Variant


@hookimpl
def attnloom_variants():
    mods = {"mask_mod": "@package@.mods:near", "score_mod": "@package@.mods:tilt"}
    params = [Param("window", int, default=8, doc="Older positions that are seen.")]
    return [Variant.from_mods("@name@", **mods, params=params, doc="A window, written in Python.")]
"""
MODS = """
def near(b, h, q_idx, kv_idx, *, window):
    return (kv_idx <= q_idx) & (q_idx - kv_idx <= window)


def tilt(score, b, h, q_idx, kv_idx):
    return score + 0.5 * (kv_idx - q_idx)
"""


def test_a_plugin_written_in_python_passes(made):
    made.add("in_python", "variant", ("plugin.py", "", PYTHON), ("mods.py", "", MODS))
    suite = type("Suite", (VariantSuite,), {"variant": "in_python"})
    checks = ("metadata", "descriptor", "parameters_are_described", "reference_agrees_with_the_dense_oracle")
    outcomes = list(run_suite(suite, (*checks, "functors_agree_with_the_reference", "composes_in_both_orders")))
    assert len(outcomes) == 6
    assert not (bad := [f"{one.check}: {one.status} {one.message}" for one in outcomes if one.status != "passed"]), bad


def test_two_plugins_with_one_name(made):
    made.add("twin", "variant")
    made.install(
        made.add("other", "variant"), "variant", provides=("variant.twin",), distribution="somebody-elses-twin"
    )
    suite = type(
        "Suite", (VariantSuite,), {"variant": "twin", "plugins": made.plugins(prefer={"variant:twin": "twin"})}
    )
    (outcome,) = run_suite(suite, ("no_other_plugin_has_the_name",))
    assert outcome.status == "failed"
    assert "twin (attnloom-twin 0.1.0)" in outcome.message and "somebody-elses-twin 0.1.0" in outcome.message


@pytest.mark.parametrize(
    ("requires", "says"),
    [
        ("", "does not require attnloom"),
        ("attnloom", "without an upper bound"),
        ("attnloom>=0.0.1", "without an upper bound"),
        ("numpy<3", "does not require attnloom"),
    ],
)
def test_requirements_that_promise_too_much(made, requires, says):
    made.add("loose", "variant", requires=requires)
    suite = type("Suite", (VariantSuite,), {"variant": "loose"})
    (outcome,) = run_suite(suite, ("metadata",))
    assert outcome.status == "failed" and says in outcome.message


def test_a_plugin_without_contributions(made):
    body = """
        import typer
        from attnloom import hookimpl

        @hookimpl
        def attnloom_commands(register):
            def silent():
                pass
            register("silent", silent)
    """
    made.add("silent", "variant", ("plugin.py", "", textwrap.dedent(body)), provides=())
    outcomes = {one.check: one for one in run_suite(type("Suite", (HooksSuite,), {"plugin": "silent"}))}
    assert outcomes["commands"].status == "failed" and "has no help" in outcomes["commands"].message
    assert outcomes["loads"].status == "passed"
