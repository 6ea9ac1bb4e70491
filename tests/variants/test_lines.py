"""Sums and multiples of distances stay lines, however they are written; what is no line is told."""

from __future__ import annotations

import numpy as np
import pytest
from attnloom import Param
from attnloom.testing.functors import check_against_reference

LINES = {
    "logit + p.rate * d": lambda x, p, d: x + p.rate * d,
    "logit - d * p.rate - 0.5": lambda x, p, d: x - d * p.rate - 0.5,
    "logit + (p.rate * d + p.rate)": lambda x, p, d: x + p.rate * d + p.rate,
    "p.rate + logit - -d": lambda x, p, d: p.rate + x + d,
    "logit + d": lambda x, p, d: x + d,
    "d + logit": lambda x, p, d: x + d,
    "2 * d * p.rate + logit": lambda x, p, d: 2 * d * p.rate + x,
    "logit + 0.5f * (d * p.rate - d)": lambda x, p, d: x + 0.5 * (d * p.rate - d),
    "logit - p.rate * (d - 1) + (3.0 - d)": lambda x, p, d: x - p.rate * (d - 1) + (3 - d),
    "logit - (1 + -(p.rate * d) + d)": lambda x, p, d: x - (1 - p.rate * d + d),
}


def added(plugins, name, expression, formula, *, d="site.distance"):
    code = f"""struct {name.title()} {{
  static constexpr bool linear_in_distance = true;
  template <class Params, class Logit>
  ATTNLOOM_FN Logit logits_transform(const Params& p, Logit logit, const attnloom::Site& site) const {{
    const auto d = {d};
    return {expression};
  }}
}};"""

    class Reference:
        def logits_transform(self, p, x, site):
            return formula(x, p, site.kv_pos - site.q_pos)

    plugins.add(
        name, code, functors={"logits_transform"}, params=[Param("rate", float, default=0.3)], reference=Reference
    )


@pytest.mark.parametrize("expression", LINES)
def test_lines(plugins, spec, expression):
    added(plugins, "tilt", expression, LINES[expression])
    compiled = check_against_reference(["tilt"], spec=spec, plugins=plugins)
    assert compiled.facts["linear_in_distance"]


@pytest.mark.parametrize(
    ("expression", "d"),
    [
        ("logit + p.rate * d", "float(site.distance)"),
        ("logit + p.rate * d", "static_cast<float>(site.kv_pos - site.q_pos)"),
        ("logit + p.rate * attnloom::abs(d)", "site.distance"),
    ],
)
def test_what_is_no_line(plugins, spec, expression, d):
    formula = (lambda x, p, d: x + p.rate * np.abs(d)) if "abs" in expression else (lambda x, p, d: x + p.rate * d)
    added(plugins, "bent", expression, formula, d=d)
    with pytest.raises(
        AssertionError, match=r"linear_in_distance says that only numbers and multiples of site\.distance"
    ):
        check_against_reference(["bent"], spec=spec, plugins=plugins)


def test_a_line_beside_a_curve_tells_keys_apart(plugins, spec):
    compiled = check_against_reference(["alibi", "soft_cap"], {"soft_cap.cap": 30.0}, spec=spec, plugins=plugins)
    assert not compiled.facts["linear_in_distance"] and not compiled.facts["may_curve"]
