"""Run in a process of its own: import one plugin module, say what came with it, and how long that took.

    python -m attnloom.testing.probe MODULE KIND NAME

Prints one JSON object. The fingerprint is a hash of all that a contribution determines: two processes with other hash
seeds must print the same.
"""

from __future__ import annotations

import json
import sys
import time

HEAVY = (
    "attnloom.jit", "cupy", "distutils", "jax", "numba", "numpy", "pandas", "pybind11", "scipy", "setuptools",
    "tensorflow", "torch", "transformers", "triton", "tvm_ffi",
)  # fmt: skip
"""What a plugin module must not import: processes that only ask what there is import it too."""


def main() -> None:
    """Measure, then print."""
    module, kind, name = sys.argv[1:4]
    report = import_report(module)
    report["fingerprint"] = fingerprint(kind, name)
    print(json.dumps(report))


def import_report(module: str) -> dict:
    """What the import of `module` brought: seconds beyond attnloom's own hooks, heavy modules, and what it printed."""
    import contextlib
    import importlib
    import io

    for own in ("attnloom.hookspecs", "attnloom.errors", "attnloom.variant", "attnloom.index", "attnloom.tile"):
        importlib.import_module(own)
    before = set(sys.modules)
    said = io.StringIO()
    begin = time.perf_counter()
    with contextlib.redirect_stdout(said):
        importlib.import_module(module)
    seconds = time.perf_counter() - begin
    brought = set(sys.modules) - before
    return {
        "seconds": seconds,
        "heavy": [heavy for heavy in HEAVY if heavy in brought],
        "modules": len(brought),
        "said": said.getvalue()[:200],
    }


def fingerprint(kind: str, name: str) -> str:
    """A hash of the contribution: a variant's text and cache key, a format's indices, a heuristic's choices."""
    import hashlib

    from attnloom.plugins import Config, PluginSet

    plugins = PluginSet.from_config(Config())
    makers = {"variant": _variant, "storage_format": _storage_format, "tile_heuristic": _tile_heuristic}
    if kind not in makers:
        return ""
    return hashlib.sha256("\0".join(makers[kind](plugins, name)).encode()).hexdigest()


def _variant(plugins, name: str) -> list[str]:
    from attnloom.compose import compose
    from attnloom.jit.toolchain import host_toolchain
    from attnloom.jit.unit import CompileUnit, unit_key
    from attnloom.testing.functors import FunctorSpec

    composition = compose(["causal", name] if name != "causal" else [name], spec=FunctorSpec(), plugins=plugins)
    unit = CompileUnit("probe", {"probe.cc": composition.source}, include_dirs=composition.include_dirs)
    return [composition.source, unit_key(unit, host_toolchain()), repr(plugins.variant(name).params)]


def _storage_format(plugins, name: str) -> list[str]:
    import numpy as np

    from attnloom.resolve import resolve_code
    from attnloom.testing.batches import LENGTHS
    from attnloom.testing.indices import arrays_of

    storage_format = plugins.storage_format(name)
    texts = [storage_format.builder]
    if storage_format.example is not None:
        for qo_lens, kv_lens in LENGTHS:
            given = resolve_code(storage_format.example)(np.random.default_rng(0), list(qo_lens), list(kv_lens), 4)
            if given is None:
                continue
            index = storage_format.build_index(list(qo_lens), list(kv_lens), 4, **given[0])
            texts += [f"{label} {array.tolist()}" for label, array in arrays_of(index)]
    return texts


def _tile_heuristic(plugins, name: str) -> list[str]:
    from attnloom.resolve import resolve_code
    from attnloom.testing.tile_heuristic_suite import problems

    heuristic = plugins.tile_heuristic(name)
    choose = resolve_code(heuristic.choose)
    return [repr(choose(problem, **heuristic.options)) for problem in problems()]


if __name__ == "__main__":
    main()
