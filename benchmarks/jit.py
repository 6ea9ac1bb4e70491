"""What compiling costs, and what a warm cache costs: `python benchmarks/jit.py [--arch sm_90a] [--json FILE]`.

Cold builds run one after the other in a cache of their own, then all at a time, as a first use does. CPU seconds are
those of the compilers; on a busy machine they say more than the wall clock. Warm figures are of new processes, after
`import torch`. `--arch` measures a kernel for a GPU, which need not be there: a wrapper is not made then.
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
from functools import cached_property

from attrs import define

READY = """
import json, sys, time
import torch
begin = time.perf_counter()
from attnloom import jit
imported = time.perf_counter()
from attnloom.kernel import describe
from attnloom.spec import AttentionSpec
from attnloom.targets import HOST, CudaTarget
variants, dtype, head_dim, arch = sys.argv[1:]
spec = AttentionSpec(variants.split(","), num_qo_heads=16, num_kv_heads=4, head_dim=int(head_dim), dtype=dtype)
target = CudaTarget(arch) if arch else HOST
unit = describe(spec, target)[2]
described = time.perf_counter()
(artifact,) = jit.prepare([unit], target.toolchain(False))
jit.load(artifact)
loaded = time.perf_counter()
if not arch:
    from attnloom.wrapper import AttentionWrapper
    AttentionWrapper(spec)
ready = time.perf_counter()
assert artifact.hit
print(json.dumps({"scan and compose": described - begin, "find and load": loaded - described, "ready": ready - begin}))
"""


@define(slots=False)
class Wanted:
    """The kernel that is built, and the compiler for it."""

    variants: str
    dtype: str
    head_dim: int
    arch: str

    @property
    def words(self) -> list[str]:
        return [self.variants, self.dtype, str(self.head_dim), self.arch]

    @cached_property
    def kernel(self):
        from attnloom.kernel import describe
        from attnloom.spec import AttentionSpec

        sizes = {"num_qo_heads": 16, "num_kv_heads": 4, "head_dim": self.head_dim}
        return describe(AttentionSpec(self.variants.split(","), dtype=self.dtype, **sizes), self._target)[2]

    @cached_property
    def toolchain(self):
        return self._target.toolchain(False)

    @property
    def _target(self):
        from attnloom.targets import HOST, CudaTarget

        return CudaTarget(self.arch) if self.arch else HOST


def measured(call) -> dict[str, float]:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    call()
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall s": wall, "cpu s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def cold(wanted: Wanted) -> dict[str, dict[str, float]]:
    from attnloom import jit
    from attnloom.jit import launcher

    found = {
        "launcher": measured(lambda: jit.build(launcher.binding_unit())),
        "scheduler": measured(lambda: jit.build(launcher.scheduler_unit())),
        "kernel": measured(lambda: jit.build(wanted.kernel, wanted.toolchain)),
    }
    jit.clear()
    found["all at a time"] = measured(lambda: jit.prepare([wanted.kernel], wanted.toolchain))
    return found


def warm(wanted: Wanted, repeats: int) -> dict[str, float]:
    runs = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", READY, *wanted.words], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    return {name: min(run[name] for run in runs) for name in runs[0]}


def hits(wanted: Wanted, count: int = 20000) -> dict[str, float]:
    from attnloom import jit

    unit, toolchain = wanted.kernel, wanted.toolchain
    jit.build(unit, toolchain)
    rounds = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count // 5):
            jit.build(unit, toolchain)
        rounds.append((time.perf_counter() - begin) / (count // 5))
    return {"median us": statistics.median(rounds) * 1e6, "best us": min(rounds) * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", default="causal")
    parser.add_argument("--dtype", help="float32, and bfloat16 with --arch")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--arch", default="", help="of a GPU, in place of this host")
    parser.add_argument("--repeats", type=int, default=5, help="new processes for the warm figures")
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    dtype = options.dtype or ("bfloat16" if options.arch else "float32")
    wanted = Wanted(options.variants, dtype, options.head_dim, options.arch)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTNLOOM_CACHE_DIR"] = folder
        from attnloom import jit

        chain = jit.host_toolchain()
        figures = {
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {chain.probe()}, {chain.isa}",
            "cold": cold(wanted),
            "warm, new process, s": warm(wanted, options.repeats),
            "hit in the process": hits(wanted),
        }
    print(figures["machine"], f"kernel for {options.arch or 'this host'}: {', '.join(wanted.words[:3])}", sep="\n")
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
