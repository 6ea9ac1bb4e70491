"""The conformance kit: what a plugin is held to, by its author's tests and by `attnloom plugins check`.

    from attnloom.testing import VariantSuite

    class TestSoftCap(VariantSuite):
        variant = "soft_cap"

Three lines run every check that a variant must pass; `StorageFormatSuite` and `TileHeuristicSuite` do the same for the
other kinds. A check may be overridden only to mark it `pytest.mark.xfail(reason=...)`. No GPU is needed: what needs one
is marked `gpu` and skipped where there is none.
"""

from __future__ import annotations

from attnloom.lazy import exports

_HOMES = {
    "HooksSuite": "hooks_suite",
    "Outcome": "runner",
    "StorageFormatSuite": "storage_format_suite",
    "TileHeuristicSuite": "tile_heuristic_suite",
    "VariantSuite": "variant_suite",
    "check_against_reference": "functors",
    "run_suite": "runner",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = exports(globals(), _HOMES)
