"""What compiling costs, and what a warm cache costs: `python benchmarks/jit.py [--json FILE]`.

Cold builds run one after the other in a cache of their own, then all at a time, as a first use does. CPU seconds are
those of the compilers; on a busy machine they say more than the wall clock. Warm figures are of new processes, after
`import torch`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

READY = """
import json, sys, time
import torch
begin = time.perf_counter()
from attnloom import jit
imported = time.perf_counter()
from attnloom.kernel import describe
from attnloom.spec import AttentionSpec
spec = AttentionSpec(variants=sys.argv[1].split(","), num_qo_heads=16, num_kv_heads=4, head_dim=64, dtype=sys.argv[2])
unit = describe(spec)[2]
described = time.perf_counter()
(artifact,) = jit.prepare([unit])
jit.load(artifact)
loaded = time.perf_counter()
from attnloom.wrapper import AttentionWrapper
AttentionWrapper(spec)
ready = time.perf_counter()
assert artifact.hit
print(json.dumps({"scan and compose": described - begin, "find and load": loaded - described, "ready": ready - begin}))
"""


def units(variants: str, dtype: str):
    from attnloom.jit import launcher
    from attnloom.kernel import describe
    from attnloom.spec import AttentionSpec

    spec = AttentionSpec(variants=variants.split(","), num_qo_heads=16, num_kv_heads=4, head_dim=64, dtype=dtype)
    return {"launcher": launcher.binding_unit(), "scheduler": launcher.scheduler_unit(), "kernel": describe(spec)[2]}


def measured(call) -> dict[str, float]:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    call()
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall s": wall, "cpu s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def cold(variants: str, dtype: str) -> dict[str, dict[str, float]]:
    from attnloom import jit

    found = {}
    wanted = units(variants, dtype)
    for name, unit in wanted.items():
        found[name] = measured(lambda unit=unit: jit.build(unit))
    jit.clear()
    found["all at a time"] = measured(lambda: jit.prepare([wanted["kernel"]]))
    return found


def warm(variants: str, dtype: str, repeats: int) -> dict[str, float]:
    runs = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-c", READY, variants, dtype], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout))
    return {name: min(run[name] for run in runs) for name in runs[0]}


def hits(variants: str, dtype: str, count: int = 20000) -> dict[str, float]:
    from attnloom import jit

    unit = units(variants, dtype)["kernel"]
    jit.build(unit)
    rounds = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count // 5):
            jit.build(unit)
        rounds.append((time.perf_counter() - begin) / (count // 5))
    return {"median us": statistics.median(rounds) * 1e6, "best us": min(rounds) * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", default="causal")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=5, help="new processes for the warm figures")
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTNLOOM_CACHE_DIR"] = folder
        from attnloom import jit

        chain = jit.host_toolchain()
        figures = {
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {chain.probe()}, {chain.isa}",
            "cold": cold(options.variants, options.dtype),
            "warm, new process, s": warm(options.variants, options.dtype, options.repeats),
            "hit in the process": hits(options.variants, options.dtype),
        }
    print(figures["machine"], f"variants {options.variants}, {options.dtype}", sep="\n")
    for name, row in figures["cold"].items():
        print(f"cold   {name:14} {row['wall s']:7.2f} s wall {row['cpu s']:7.2f} s CPU")
    for name, value in figures["warm, new process, s"].items():
        print(f"warm   {name:14} {value * 1e3:7.1f} ms after import torch")
    for name, value in figures["hit in the process"].items():
        print(f"hit    {name:14} {value:7.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
