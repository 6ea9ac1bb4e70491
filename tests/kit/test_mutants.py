"""The kit tests itself: each of these plugins is wrong in one thing, and the check that is named here says so."""

from __future__ import annotations

import shutil

import pytest
from attnloom.testing import HooksSuite, StorageFormatSuite, TileHeuristicSuite, VariantSuite, run_suite
from attrs import frozen

SUITES = {
    "window": ("variant", VariantSuite),
    "variant": ("variant", VariantSuite),
    "storage_format": ("storage_format", StorageFormatSuite),
    "tile_heuristic": ("tile_heuristic", TileHeuristicSuite),
}


@frozen
class Mutant:
    """What is changed in a right plugin, the check that catches it, and a part of what it says."""

    name: str
    kind: str
    check: str
    says: str
    edits: tuple[tuple[str, str, str], ...]


def mutant(name, kind, check, says, *edits):
    return Mutant(name, kind, check, says, edits)


POOL = """
from attnloom.pages import PagePool


class Pool(PagePool):
    def _last_is_shared(self, sequence):
        return False

    def needs(self, sequences):
        return {"pages": [sequence.pages for sequence in sequences]}
"""
ANOTHER_SINGLE = """
    import attrs
    other = ComposedIndex(
        page_size=page_size,
        qo_indptr=qo_indptr,
        kv_len=kv_len,
        token_request=token_request,
        levels=[attrs.evolve(level, indices=level.indices + 1)],
    )
    return ComposedIndex(
        single=other,"""

VARIANTS = [
    mutant(
        "range_off_by_one",
        "window",
        "kv_range_agrees_with_the_mask",
        "differs from the reference's",
        (".h", "return {s.q_pos - p.left, s", "return {s.q_pos - p.left + 1, s"),
    ),
    mutant(
        "range_and_reference_off_by_one",
        "window",
        "kv_range_agrees_with_the_mask",
        "which kv_range leaves out",
        (".h", "return {s.q_pos - p.left, s", "return {s.q_pos - p.left + 1, s"),
        ("reference.py", "pos - p.left, pos + 1", "pos - p.left + 1, pos + 1"),
    ),
    mutant(
        "monotone_is_a_lie",
        "window",
        "kv_range_agrees_with_the_mask",
        "says range_monotone",
        (".h", "return {s.q_pos - p.left, s.q_pos + 1}", "return {s.q_pos % 5 - 9, s.q_pos + 1}"),
        ("reference.py", "pos - p.left, pos + 1", "pos % 5 - 9, pos + 1"),
    ),
    mutant(
        "uniform_is_a_lie",
        "window",
        "kv_range_agrees_with_the_mask",
        "says range_head_uniform",
        (".h", "return {s.q_pos - p.left, s", "return {s.q_pos - p.left - s.qo_head, s"),
        ("reference.py", "pos - p.left, pos + 1", "pos - p.left - site.qo_head, pos + 1"),
    ),
    mutant(
        "mask_forgets_a_head",
        "window",
        "functors_agree_with_the_reference",
        "logits_mask",
        (".h", "(s.qo_head % 2 == 0 || s.kv_pos % 2 == 0)", "(s.qo_head != 1 || s.kv_pos % 2 == 0)"),
    ),
    mutant(
        "reads_past_kv_len",
        "window",
        "functors_agree_with_the_reference",
        "logits_transform",
        (".h", "p.weights(s.kv_index)", "p.weights(s.kv_index + (s.kv_index == s.kv_len - 1))"),
    ),
    mutant(
        "wrong_reference",
        "window",
        "functors_agree_with_the_reference",
        "logits_transform",
        ("reference.py", "return x + p.weights", "return x - p.weights"),
    ),
    mutant(
        "keeps_a_count",
        "window",
        "functors_agree_with_the_reference",
        "logits_transform",
        (".h", "return logit + ", "static int calls = 0;\n    return logit * (calls++ % 2) + "),
    ),
    mutant(
        "reference_sees_the_batch",
        "window",
        "reference_agrees_with_the_dense_oracle",
        "not vectorised right",
        ("reference.py", "return x + p.weights", "return x - x.mean() + p.weights"),
    ),
    mutant(
        "reference_changes_its_input",
        "window",
        "reference_agrees_with_the_dense_oracle",
        "not vectorised right",
        ("reference.py", "return near &", "site.kv_pos[...] += 1\n        return near &"),
    ),
    mutant(
        "no_method",
        "window",
        "parameters_are_described",
        "has no method for ['logits_mask']",
        ("reference.py", "def logits_mask", "def mask"),
    ),
    mutant(
        "no_doc",
        "window",
        "descriptor",
        "has no doc",
        ("plugin.py", '    doc="A window, of even positions alone on odd heads, with a weight for each key.",\n', ""),
    ),
    mutant(
        "undescribed_parameter",
        "window",
        "parameters_are_described",
        "undescribed_parameter.left has no doc",
        ("plugin.py", "Older positions that a query sees.", " "),
    ),
    mutant(
        "default_of_another_type",
        "window",
        "parameters_are_described",
        "is a int, its default is 7.5",
        ("plugin.py", "default=7,", "default=7.5,"),
    ),
    mutant(
        "no_example",
        "window",
        "functors_agree_with_the_reference",
        "can be made up; give",
        ("plugin.py", '    example="@package@.example:example",\n', ""),
    ),
    mutant(
        "heavy_import",
        "variant",
        "import_is_light",
        "imports numpy",
        ("plugin.py", "from attnloom import hookimpl", "import numpy\nfrom attnloom import hookimpl"),
    ),
    mutant(
        "talks_at_import",
        "variant",
        "import_is_light",
        "prints 'hello",
        ("plugin.py", "from attnloom import hookimpl", "print('hello')\nfrom attnloom import hookimpl"),
    ),
    mutant(
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
    mutant(
        "pollutes_others",
        "window",
        "composes_in_both_orders",
        "do not compile together",
        (".h", "namespace @package@ {", "#define causal not_causal(\nnamespace @package@ {"),
    ),
    mutant(
        "host_only_function",
        "window",
        "compiles_for_devices",
        "does not compile for devices",
        (".h", "  template <class P>\n  ATTNLOOM_FN bool", "  template <class P>\n  bool"),
    ),
]

FORMATS = [
    mutant(
        "slots_reversed",
        "storage_format",
        "build_and_back",
        "finds key 0 in slot",
        ("build.py", "for page in own]", "for page in reversed(own)]"),
    ),
    mutant(
        "one_key_too_many",
        "storage_format",
        "index_is_valid",
        "kv_len",
        (
            "build.py",
            "        row_indptr=qo_indptr,\n        kv_len=kv_len,",
            "        row_indptr=qo_indptr,\n        kv_len=kv_len + 1,",
        ),
    ),
    mutant(
        "pages_from_one",
        "storage_format",
        "pages_stay_in_bounds",
        "the cache has",
        ("build.py", "np.array([page for", "np.array([page + 9 for"),
    ),
    mutant(
        "trusts_itself",
        "storage_format",
        "index_is_valid",
        "kv_offset",
        (
            "build.py",
            "kv_offset=np.zeros(len(kv_len), np.int32)",
            "kv_offset=np.full(len(kv_len), page_size, np.int32)",
        ),
        ("build.py", "levels=[level],\n    )", "levels=[level],\n    ).trusted()"),
    ),
    mutant(
        "uses_up_its_input",
        "storage_format",
        "builds_are_repeatable",
        "changes pages",
        ("build.py", "    level = Level(", "    [own.append(0) for own in pages]\n    level = Level("),
    ),
    mutant(
        "remembers",
        "storage_format",
        "builds_are_repeatable",
        "the second time",
        ("build.py", "def build_index", "SEEN = []\n\n\ndef build_index"),
        ("build.py", "page_begin=np.cumsum(counts) - counts", "page_begin=np.cumsum(counts) - counts + len(SEEN)"),
        ("build.py", "indices=np.array([", "indices=np.array([0] * len(SEEN) + [SEEN.append(1)][:0] + ["),
    ),
    mutant(
        "no_checks",
        "storage_format",
        "contradictions_are_refused",
        "a negative kv_len",
        (
            "build.py",
            "batch_lengths(qo_lens, kv_lens)",
            "batch_lengths(np.maximum(qo_lens, 0), np.maximum(kv_lens, 0))",
        ),
    ),
    mutant(
        "lists_alone",
        "storage_format",
        "lengths_come_in_any_integer_type",
        "lengths as int64",
        (
            "build.py",
            "    page_size = check",
            "    kv_lens = kv_lens if type(kv_lens) is list else -(-kv_lens // 2) * 2\n    page_size = check",
        ),
    ),
    mutant(
        "another_single_form",
        "storage_format",
        "single_form_shows_the_same",
        "differ in slot",
        (
            "build.py",
            "    return ComposedIndex(",
            ANOTHER_SINGLE,
        ),
    ),
    mutant(
        "forks_without_copying",
        "storage_format",
        "manager_keeps_its_books",
        "holds another sequence's key",
        ("plugin.py", "    example=", '    manager="@package@.manager:Pool",\n    example='),
        (
            "manager.py",
            "",
            POOL,
        ),
    ),
    mutant(
        "no_example",
        "storage_format",
        "build_and_back",
        "gives no example",
        ("plugin.py", '    example="@package@.example:example",\n', ""),
    ),
    mutant(
        "order_of_hashes",
        "storage_format",
        "hash_seeds_change_nothing",
        "PYTHONHASHSEED",
        (
            "example.py",
            "    pages = [[shuffled.pop()",
            "    shuffled.sort(key=lambda page: hash(str(page)))\n    pages = [[shuffled.pop()",
        ),
    ),
]

HEURISTICS = [
    mutant(
        "pairs",
        "tile_heuristic",
        "choices_are_tiles_that_kernels_have",
        "neither None nor a TileChoice",
        ("choose.py", "    keys =", "    return 16, 64\n    keys ="),
    ),
    mutant(
        "too_few_rows",
        "tile_heuristic",
        "choices_are_tiles_that_kernels_have",
        "query heads share a kv head",
        ("choose.py", "max(32, problem.group)", "32"),
    ),
    mutant(
        "odd_tiles",
        "tile_heuristic",
        "choices_are_tiles_that_kernels_have",
        "chooses",
        ("choose.py", "short=Tile(16, keys)", "short=Tile(16, 100000)"),
    ),
    mutant(
        "no_reason", "tile_heuristic", "choices_say_why", "does not say why", ("choose.py", "why=[", "why=[][:0] and [")
    ),
    mutant(
        "throws_dice",
        "tile_heuristic",
        "same_problem_same_choice",
        "chooses",
        ("choose.py", "    keys = 128 if", "    import random\n    keys = 128 if random.random() < 0.5 or"),
    ),
    mutant(
        "knows_everything",
        "tile_heuristic",
        "families_it_does_not_know",
        "a_family_of_the_future",
        ("choose.py", 'if problem.family != "host":', "if False:"),
    ),
    mutant(
        "no_opinion",
        "tile_heuristic",
        "has_an_opinion",
        "returns none for every",
        ("choose.py", "    keys =", "    return None\n    keys ="),
    ),
    mutant(
        "raises",
        "tile_heuristic",
        "choices_say_why",
        "raises KeyError",
        ("choose.py", "    keys =", "    {}[problem.head_dim]\n    keys ="),
    ),
]


@pytest.mark.parametrize("wrong", [*VARIANTS, *FORMATS, *HEURISTICS], ids=lambda wrong: wrong.name)
def test_each_mistake_is_caught_by_the_check_for_it(made, wrong):
    if wrong.check == "compiles_for_devices" and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    made.add(wrong.name, wrong.kind, *wrong.edits)
    attribute, base = SUITES[wrong.kind]
    suite = type("Suite", (base,), {attribute: wrong.name, "shrink": False})
    (outcome,) = run_suite(suite, (wrong.check,))
    assert outcome.status == "failed", f"{wrong.check}: {outcome.status} {outcome.message}"
    assert wrong.says in outcome.message


def test_a_right_plugin_passes_what_the_wrong_ones_fail(made):
    made.add("right", "window")
    suite = type("Suite", (VariantSuite,), {"variant": "right"})
    checks = sorted({wrong.check for wrong in VARIANTS})
    outcomes = list(run_suite(suite, tuple(checks)))
    assert sorted(outcome.check for outcome in outcomes) == checks
    bad = [f"{one.check}: {one.message}" for one in outcomes if one.status not in ("passed", "skipped")]
    assert not bad, bad


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
    made.add("silent", "variant", ("plugin.py", "", __import__("textwrap").dedent(body)), provides=())
    outcomes = {one.check: one for one in run_suite(type("Suite", (HooksSuite,), {"plugin": "silent"}))}
    assert outcomes["commands"].status == "failed" and "has no help" in outcomes["commands"].message
    assert outcomes["loads"].status == "passed"
