"""What an author who breaks the C++ contract is told, and by whom he is named."""

import pytest
from attnloom.compose import compose
from attnloom.errors import CompileError
from attnloom.testing.functors import CompiledFunctors
from attnloom.variant import Param

LOGITS = (
    "template <class P> ATTNLOOM_FN "
    "float logits_transform(const P&, float x, const attnloom::Site&) const { return x; }"
)


def compiled(plugins, spec, *names, params=None):
    return CompiledFunctors(compose(names, spec=spec, plugins=plugins, params=params), params)


def complaint(plugins, spec, name="bad"):
    with pytest.raises(CompileError) as caught:
        compiled(plugins, spec, name)
    return str(caught.value)


WRONG_SIGNATURES = [
    ("logits_transform", "template <class P> float logits_transform(const P&, float x) const { return x; }"),
    (
        "logits_transform",
        "template <class P> float logits_transform(const P&, int x, const attnloom::Site&) const { return x; }",
    ),
    (
        "logits_transform",
        "template <class P> double logits_transform(const P&, float x, const attnloom::Site&) const { return x; }",
    ),
    (
        "logits_transform",
        "template <class P> float logits_transform(const P&, float x, const attnloom::Site&) { return x; }",
    ),
    (
        "logits_transform",
        "template <class P> float logits_transform(const P&, const attnloom::Site&, float x) const { return x; }",
    ),
    ("logits_mask", "template <class P> int logits_mask(const P&, const attnloom::Site&) const { return 1; }"),
    ("logits_mask", "template <class P> bool logits_mask(const P&, int) const { return true; }"),
    ("kv_range", "template <class P> int kv_range(const P&, const attnloom::Site&) const { return 0; }"),
    ("kv_range", "attnloom::Range kv_range() const { return {}; }"),
    ("row_init", "template <class P> float row_init(const P&, const attnloom::Site&) const { return 0; }"),
    ("query_transform", "template <class P, class R> void query_transform(const P&, R&, int) const {}"),
    ("key_transform", "template <class P, class R> void key_transform(R&, const attnloom::Site&) const {}"),
    ("value_transform", "template <class P> void value_transform(const P&, float*, const attnloom::Site&) const {}"),
    (
        "output_transform",
        "template <class P, class R> float output_transform(const P&, R&, const attnloom::Site&) const {return 0;}",
    ),
    ("logits_transform", "float logits_transform = 1;"),
]


@pytest.mark.parametrize(("functor", "code"), WRONG_SIGNATURES, ids=lambda value: value[:48])
def test_a_wrong_signature_is_named_and_never_dropped(plugins, spec, functor, code):
    plugins.add("bad", f"struct Bad {{ {code} }};", functors={functor})
    text = complaint(plugins, spec)
    assert "dist-bad" in text
    assert f"Bad::{functor} must be `" in text or "Bad must be an empty" in text


def test_declared_and_defined_functors_must_agree(plugins, spec):
    plugins.add("bad", f"struct Bad {{ {LOGITS} }};", functors={"logits_mask"})
    text = complaint(plugins, spec)
    assert "both defined by Bad and declared by its descriptor" in text and "logits_" in text


def test_a_misspelt_functor_is_found(plugins, spec):
    plugins.add("bad", f"struct Bad {{ {LOGITS.replace('logits_', 'logit_')} }};", functors={"logits_transform"})
    assert "logits_transform must be both defined by Bad" in complaint(plugins, spec)


def test_use_softmax_must_agree(plugins, spec):
    plugins.add("bad", f"struct Bad {{ {LOGITS} }};", functors={"logits_transform"}, use_softmax=False)
    assert "use_softmax is false, Bad says otherwise" in complaint(plugins, spec)
    plugins.add(
        "worse",
        f"struct Worse {{ static constexpr bool use_softmax = false; {LOGITS} }};",
        functors={"logits_transform"},
    )
    assert "use_softmax is true, Worse says otherwise" in complaint(plugins, spec, "worse")


def test_constants_must_be_constants(plugins, spec):
    plugins.add(
        "bad", f"struct Bad {{ static constexpr int use_softmax = 1; {LOGITS} }};", functors={"logits_transform"}
    )
    assert "Bad::use_softmax must be `static constexpr bool use_softmax`" in complaint(plugins, spec)


def test_lines_take_any_type_of_logit(plugins, spec):
    code = f"struct Bad {{ static constexpr bool linear_in_distance = true; {LOGITS} }};"
    plugins.add("bad", code, functors={"logits_transform"})
    assert "Bad::linear_in_distance needs `template <class Params, class Logit>" in complaint(plugins, spec)


def test_state_in_the_struct_is_refused(plugins, spec):
    plugins.add("bad", f"struct Bad {{ float calls; {LOGITS} }};", functors={"logits_transform"})
    assert "Bad must be an empty, default-constructible struct" in complaint(plugins, spec)


def test_a_parameter_that_is_not_declared_is_the_authors_error(plugins, spec):
    body = LOGITS.replace("const P&", "const P& p").replace("return x", "return x * p.gain")
    plugins.add(
        "bad", f"struct Bad {{\n{body}\n}};", functors={"logits_transform"}, params=[Param("scale", default=1.0)]
    )
    text = complaint(plugins, spec)
    assert "dist-bad" in text and "bad.h" in text and "gain" in text


def test_a_syntax_error_is_shown_where_it_is(plugins, spec):
    plugins.add("bad", "struct Bad {\n  int x\n};", functors={"logits_transform"})
    text = complaint(plugins, spec)
    assert "dist-bad" in text and "bad.h:5" in text.replace("bad.h:4", "bad.h:5")


FREE_FORMS = {
    "auto parameters": "ATTNLOOM_FN float logits_transform(const auto&, auto x, const auto&) const { return x + 1; }",
    "static": LOGITS.replace("ATTNLOOM_FN", "static ATTNLOOM_FN")
    .replace(") const {", ") {")
    .replace("return x", "return x + 1"),
    "site by value": LOGITS.replace("const attnloom::Site&", "attnloom::Site").replace("return x", "return x + 1"),
    "const float": LOGITS.replace("float x", "const float& x").replace("return x", "return x + 1"),
}


@pytest.mark.parametrize("form", FREE_FORMS)
def test_other_ways_to_write_a_right_functor(plugins, spec, form):
    import numpy as np
    from attnloom.testing.functors import random_sites

    plugins.add("plus", f"struct Plus {{ {FREE_FORMS[form]} }};", functors={"logits_transform"})
    sites = random_sites(np.random.default_rng(0), 5, spec)
    assert compiled(plugins, spec, "plus").logits(np.arange(5), sites).tolist() == [1, 2, 3, 4, 5]
