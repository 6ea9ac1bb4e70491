"""What authors get wrong in C++, and what they are told: the plugin, the header and line, and the first message."""

from __future__ import annotations

import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.testing.functors import CompiledFunctors, FunctorSpec


def mistake(name, kind, *says, edits=()):
    """A plugin's name, what it starts from, patterns of what must be said, and what is changed in it."""
    return pytest.param((name, kind, *says), edits, id=name)


COMPILING = [
    mistake(
        "missing_argument",
        "variant",
        r"missing_argument\.h:\d+",
        "logits_transform must be `float logits_transform",
        edits=[(".h", ", const attnloom::Site& site) const", ") const"), (".h", "site.q_pos - site.kv_pos", "0")],
    ),
    mistake(
        "wrong_type",
        "variant",
        r"wrong_type\.h:\d+",
        "logits_transform must be `float logits_transform",
        edits=[(".h", "ATTNLOOM_FN float", "ATTNLOOM_FN double")],
    ),
    mistake(
        "integer_logit",
        "variant",
        r"integer_logit\.h:\d+",
        r"must be `float logits_transform\(const Params&, float",
        edits=[(".h", "float logit,", "int logit,")],
    ),
    mistake(
        "not_const",
        "variant",
        r"not_const\.h:\d+",
        "must be `float logits_transform",
        edits=[(".h", "Site& site) const {", "Site& site) {")],
    ),
    mistake(
        "unknown_parameter",
        "variant",
        r"unknown_parameter\.h:\d+",
        "'speed'|rates",
        edits=[(".h", "p.rate", "p.speed")],
    ),
    mistake(
        "cpp_syntax", "variant", r"cpp_syntax\.h:\d+", "error: ", edits=[(".h", "return logit -", "return logit - ;")]
    ),
    mistake(
        "misspelt_functor",
        "variant",
        r"misspelt_functor\.h:\d+",
        "must be both defined by",
        edits=[(".h", "logits_transform(", "logit_transform(")],
    ),
    mistake(
        "undeclared_functor",
        "variant",
        r"undeclared_functor\.h:\d+",
        "must be both defined by",
        edits=[("plugin.py", '{"logits_transform"}', '{"logits_mask"}')],
    ),
    mistake(
        "misspelt_struct",
        "variant",
        "MisspeltStruct|does not name",
        edits=[(".h", "struct @Struct@", "struct Another")],
    ),
    mistake(
        "keeps_state",
        "variant",
        r"keeps_state\.h:\d+",
        "must be an empty",
        "state belongs in parameters",
        edits=[(".h", "struct @Struct@ {", "struct @Struct@ {\n  float last = 0;")],
    ),
    mistake(
        "too_many_indices",
        "window",
        r"too_many_indices\.h:\d+",
        "one index a dimension",
        edits=[(".h", "p.weights(s.kv_index)", "p.weights(s.qo_head, s.kv_index)")],
    ),
    mistake(
        "range_of_ints",
        "window",
        r"range_of_ints\.h:\d+",
        "must be `Range or Ranges kv_range",
        edits=[
            (".h", "ATTNLOOM_FN attnloom::Range kv_range", "ATTNLOOM_FN int kv_range"),
            (".h", "return {s.q_pos - p.left, s.q_pos + 1};", "return 0;"),
        ],
    ),
    mistake(
        "missing_include",
        "variant",
        r"missing_include\.h:\d+",
        "no_such_header|not_there",
        edits=[(".h", "#include <attnloom/variant.h>", "#include <attnloom/variant.h>\n#include <no_such_header>")],
    ),
]


@pytest.mark.parametrize(("wrong", "edits"), COMPILING)
def test_functors_that_do_not_compile(made, told, wrong, edits):
    name, kind, *_ = wrong
    params = {f"{name}.weights": np.zeros(8, np.float32)} if kind == "window" else {}

    def act():
        CompiledFunctors(compose([name], spec=FunctorSpec(), plugins=made.plugins(), params=params), params)

    assert len(told(act, *wrong, edits=edits).splitlines()) <= 6, "one message, not the template stack"
