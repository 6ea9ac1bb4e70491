"""What comes with attnloom is held to the kit too; its compiled code has tests of its own and is left out here."""

from __future__ import annotations

import pytest
from attnloom.plugins import Config, PluginSet
from attnloom.testing import StorageFormatSuite, TileHeuristicSuite, VariantSuite, run_suite

SUITES = {"variant": VariantSuite, "storage_format": StorageFormatSuite, "tile_heuristic": TileHeuristicSuite}
LEFT_OUT = {
    "import_is_light", "hash_seeds_change_nothing",
    "functors_agree_with_the_reference", "kv_range_agrees_with_the_mask", "kernel_agrees_with_the_reference",
    "functors_are_given_what_the_contract_says", "composes_in_both_orders", "compiles_for_devices", "kernel_on_a_gpu",
}  # fmt: skip


def provided():
    records = PluginSet.from_config(Config()).records()
    ours = [record for record in records if record.distribution in OURS]
    return sorted({key for record in ours for key in record.provides})


OURS = {
    "attnloom",
    *(f"attnloom-{name}" for name in ("alibi", "bit-mask", "qk-norm", "rope", "sigmoid", "sinks", "sliding-window")),
    *(f"attnloom-{name}" for name in ("soft-cap", "page-table", "radix-tree", "tree-attention")),
}


@pytest.mark.parametrize(("kind", "name"), provided())
def test_what_comes_with_attnloom_passes_the_kit(kind, name, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CONFIG", "")
    suite = type("Suite", (SUITES[kind],), {kind: name, "steps": 12, "num_examples": 6})
    checks = tuple(check.removeprefix("test_") for check in dir(suite) if check.startswith("test_"))
    outcomes = list(run_suite(suite, tuple(check for check in checks if check not in LEFT_OUT)))
    assert len(outcomes) >= 5
    assert not (failed := [f"{one.check}: {one.message}" for one in outcomes if one.failed]), failed


def test_every_kind_is_there():
    assert {kind for kind, _ in provided()} == set(SUITES)
