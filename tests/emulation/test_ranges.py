"""Rows that see several ranges of keys, in tiles apart from each other."""

from __future__ import annotations

import pytest
from attnloom import Variant
from emulation.bench import AMPERE, HOPPER, KERNELS, ONE_TEAM, TEAMS
from gpu.bench import SPECS

ENDS = """
#pragma once
#include <attnloom/variant.h>

struct Ends {
  template <class Params>
  ATTNLOOM_FN attnloom::Ranges kv_range(const Params&, const attnloom::Site& site) const {
    return {{0, 40}, {site.q_pos - 150, site.q_pos + 1}};
  }
};
"""
REFERENCE = """
class Ends:
    def kv_range(self, p, site):
        return [(0 * site.q_pos, 0 * site.q_pos + 40), (site.q_pos - 150, site.q_pos + 1)]
"""


@pytest.fixture(scope="module")
def ends(make_package):
    package = make_package("ends", {"variant.h": ENDS, "reference.py": REFERENCE})
    return Variant(
        name="ends",
        struct="Ends",
        header="variant.h",
        package=package,
        functors=("kv_range",),
        reference=f"{package}.reference:Ends",
    )


@pytest.mark.parametrize(
    "kernel, arch, tile", [("mma", AMPERE, {}), ("one_team", HOPPER, ONE_TEAM), ("teams", HOPPER, TEAMS)]
)
def test_first_keys_and_a_window(bench, rng, ends, monkeypatch, kernel, arch, tile):
    monkeypatch.setitem(SPECS, "ends", {"variants": [ends, "causal"], "head_dim": 64})
    monkeypatch.setitem(KERNELS, f"ends_{kernel}", (arch, "ends", tile))
    wrapper = bench.wrapper(f"ends_{kernel}", num_workers=2)
    index, host, data = bench.batch(rng, wrapper.spec, [(130, 700), (1, 500), (70, 70), (300, 420)])
    bench.check(wrapper, index, host, data, scale=2.0)


def test_places_for_queries(bench, rng, ends, monkeypatch):
    """Queries come in ahead where there is room for two units', which those of much to note do not leave."""
    monkeypatch.setitem(SPECS, "ends_alibi", {"variants": [ends, "causal", "alibi"]})
    monkeypatch.setitem(KERNELS, "much_to_note", (HOPPER, "ends_alibi", TEAMS))
    for kernel, places in ("much_to_note", 1), ("teams", 2):
        wrapper = bench.wrapper(kernel, num_workers=2)
        index, host, data = bench.batch(rng, wrapper.spec, [(130, 700), (1, 500), (70, 70), (300, 420)])
        bench.check(wrapper, index, host, data, scale=2.0)
        assert wrapper._engine.kernel.library.emulation_dynamic_bytes() == (128 + 32 * places) * 1024
