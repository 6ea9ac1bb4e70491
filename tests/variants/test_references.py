"""References that are not what their descriptors declare."""

from __future__ import annotations

import attnloom
import pytest
from attnloom import Variant
from attnloom.errors import PluginError

HEADER = """
#pragma once
#include <attnloom/variant.h>

struct Near {
  template <class P> ATTNLOOM_FN attnloom::Range kv_range(const P&, const attnloom::Site& s) const {
    return {s.q_pos - 9, s.q_pos + 1};
  }
};
"""
LACKING = "class Near:\n    pass\n"
PAIR = "class Near:\n    def kv_range(self, p, site):\n        return site.q_pos - 9, site.q_pos + 1\n"


@pytest.mark.parametrize(
    "name, text, told",
    [
        (
            "lacking",
            LACKING,
            "'near': its reference 'lacking.reference:Near' has no kv_range, which its descriptor declares",
        ),
        ("pair", PAIR, r"the reference Near\.kv_range must return a list of \(lo, hi\), one a range, got"),
    ],
)
def test_a_wrong_reference(make_package, name, text, told):
    package = make_package(name, {"variant.h": HEADER, "reference.py": text})
    fields = {"struct": "Near", "header": "variant.h", "package": package, "functors": ("kv_range",)}
    near = Variant(name="near", reference=f"{package}.reference:Near", **fields)
    spec = attnloom.AttentionSpec([near], num_qo_heads=2, num_kv_heads=1, head_dim=16, dtype="float32")
    with pytest.raises(PluginError, match=told):
        attnloom.explain(spec, compile=False)
