"""Variants written in Python beside the hand-written plugins: lowering, and the speed of the kernels.

    python benchmarks/mods.py [--json] [--device cuda] [--threads 1] [--rounds 15]

The two sides of a row take turns. On the host times are of the CPU, so that a loaded machine disturbs less; on a GPU
they are those of graph replays with the second-level cache flushed. The ratio is that of the fastest rounds, above 1
where the Python is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import attnloom
import torch
from attnloom import AttentionSpec, AttentionWrapper, Param, Variant
from attnloom.mods import gallery
from attnloom.mods.functor import lower_variant
from attrs import frozen
from gpu import replay_of


@frozen
class Sizes:
    """What the two sides compute on one device: heads, and `(qo_lens, kv_lens)` of each phase."""

    heads: int
    kv_heads: int
    head_dim: int
    prefill: tuple[list[int], list[int]]
    decode: tuple[list[int], list[int]]


SIZES = {
    "cpu": Sizes(16, 16, 64, ([512] * 4, [512] * 4), ([1] * 16, [2048] * 16)),
    "cuda": Sizes(32, 8, 128, ([4096] * 4, [4096] * 4), ([1] * 64, [4096] * 64)),
}


def window_mod(b, h, q_idx, kv_idx, *, window):
    return (kv_idx <= q_idx) & (q_idx - kv_idx <= window)


def pairs(heads, device, fast_math):
    """`{name: (plugins' variants and params, the same from Python)}`."""
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], device=device)
    mods = partial(Variant.from_mods, fast_math=fast_math)
    cap = mods("capped", score_mod=lambda s, b, h, q, kv, *, cap: cap * torch.tanh(s / cap), params=[Param("cap")])
    window = mods("near", mask_mod=window_mod, params=[Param("window", int)])
    causal = mods("past", mask_mod=gallery.causal())
    return {
        "causal": ((["causal"], {}), ([causal], {})),
        "soft_cap": ((["causal", "soft_cap"], {}), (["causal", cap], {"capped.cap": 50.0})),
        "alibi": (
            (["causal", "alibi"], {"alibi.slopes": slopes}),
            (["causal", mods("tilted", score_mod=gallery.alibi(slopes))], {}),
        ),
        "window": (
            (["causal", "sliding_window"], {"sliding_window.left": 128}),
            ([window], {"near.window": 128}),
        ),
    }


def wrapper_of(variants, params, lengths, sizes, options):
    spec = AttentionSpec(variants, sizes.heads, sizes.kv_heads, sizes.head_dim, dtype=options.dtype, params=params)
    threads = options.threads if options.device == "cpu" else None
    wrapper = AttentionWrapper(spec, options.device, num_threads=threads)
    wrapper.plan(attnloom.storage_format("dense").build_index(*lengths))
    return wrapper


def race(name, sides, lengths, sizes, options):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(options.device, getattr(torch, options.dtype))

    q = random(sum(lengths[0]), sizes.heads, sizes.head_dim)
    kv = tuple(random(1, sum(lengths[1]), sizes.kv_heads, sizes.head_dim) for _ in range(2))
    wrappers = [wrapper_of(variants, params, lengths, sizes, options) for variants, params in sides]
    difference = (wrappers[0].run(q, kv).float() - wrappers[1].run(q, kv).float()).abs().max().item()
    clocks = [clock_of(wrapper, q, kv) for wrapper in wrappers]
    times = [[], []]
    for turn in range(options.rounds):
        for side in (0, 1) if turn % 2 else (1, 0):
            times[side].append(clocks[side]())
    written, lowered = (min(side) for side in times)
    return {
        "case": name, "dtype": options.dtype, "plugin_ms": written, "python_ms": lowered,
        "ratio": written / lowered, "median_ratio": statistics.median(times[0]) / statistics.median(times[1]),
        "difference": difference,
    }  # fmt: skip


def clock_of(wrapper, q, kv):
    """A function that runs the wrapper once and returns the milliseconds that took."""
    out = torch.empty_like(q)
    if q.is_cuda:
        run = replay_of(lambda: wrapper.run(q, kv, out=out))
        return lambda: run() / 1e3

    def time_on_host():
        begin = time.process_time()
        wrapper.run(q, kv, out=out)
        return (time.process_time() - begin) * 1e3

    return time_on_host


def lowering(sides):
    """CPU milliseconds of lowering each gallery entry of the races, the median of ten."""
    rows = {}
    for name, (_, (variants, _)) in sides.items():
        variant = next(v for v in variants if isinstance(v, Variant))
        lower_variant(variant)
        times = []
        for _ in range(10):
            begin = time.process_time()
            lower_variant(variant)
            times.append((time.process_time() - begin) * 1e3)
        rows[name] = statistics.median(times)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", choices=tuple(SIZES), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="on the host")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", help="float32 on the host, bfloat16 on a GPU")
    parser.add_argument("--fast-math", action="store_true", help="of the Python mods")
    options = parser.parse_args()
    options.dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
    torch.set_num_threads(options.threads)
    sizes = SIZES[options.device]
    sides = pairs(sizes.heads, options.device, options.fast_math)
    rows = [
        race(f"{name} {phase}", pair, lengths, sizes, options)
        for name, pair in sides.items()
        for phase, lengths in (("prefill", sizes.prefill), ("decode", sizes.decode))
    ]
    found = {"lowering_ms": lowering(sides), "races": rows}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, milliseconds in found["lowering_ms"].items():
        print(f"lowering {name:10} {milliseconds:6.1f} ms")
    for row in rows:
        print(
            f"{row['case']:18} plugin {row['plugin_ms']:8.3f} ms   python {row['python_ms']:8.3f} ms   "
            f"ratio {row['ratio']:.3f} (median {row['median_ratio']:.3f})   difference {row['difference']:.1e}"
        )


if __name__ == "__main__":
    main()
