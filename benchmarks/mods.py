"""Variants written in Python beside the hand-written plugins: lowering, and the speed of the kernels.

    python benchmarks/mods.py [--json] [--threads 1] [--rounds 15]

The two sides of a row take turns. Times are of the CPU, so that a loaded machine disturbs less; the ratio is that of
the fastest rounds, above 1 where the Python is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import attnloom
import torch
from attnloom import AttentionSpec, AttentionWrapper, Param, Variant
from attnloom.mods import gallery
from attnloom.mods.functor import lower_variant

HEADS, KV_HEADS, DIM = 16, 16, 64
PREFILL = ([512] * 4, [512] * 4)
DECODE = ([1] * 16, [2048] * 16)


def window_mod(b, h, q_idx, kv_idx, *, window):
    return (kv_idx <= q_idx) & (q_idx - kv_idx <= window)


def pairs():
    """`{name: (plugins' variants and params, the same from Python)}`."""
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)])
    mods = Variant.from_mods
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


def wrapper_of(variants, params, lengths, dtype, threads):
    spec = AttentionSpec(variants, HEADS, KV_HEADS, DIM, dtype=dtype, params=params)
    wrapper = AttentionWrapper(spec, num_threads=threads)
    wrapper.plan(attnloom.storage_format("dense").build_index(*lengths))
    return wrapper


def race(name, sides, lengths, dtype, threads, rounds):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(sum(lengths[0]), HEADS, DIM, generator=generator).to(getattr(torch, dtype))
    kv = tuple(
        torch.randn(1, sum(lengths[1]), KV_HEADS, DIM, generator=generator).to(q.dtype) for _ in range(2)
    )
    wrappers = [wrapper_of(variants, params, lengths, dtype, threads) for variants, params in sides]
    difference = (wrappers[0].run(q, kv).float() - wrappers[1].run(q, kv).float()).abs().max().item()
    times = [[], []]
    for turn in range(rounds):
        for side in (0, 1) if turn % 2 else (1, 0):
            begin = time.process_time()
            wrappers[side].run(q, kv)
            times[side].append(time.process_time() - begin)
    written, lowered = (min(side) for side in times)
    return {
        "case": name, "dtype": dtype, "plugin_ms": written * 1e3, "python_ms": lowered * 1e3,
        "ratio": written / lowered, "median_ratio": statistics.median(times[0]) / statistics.median(times[1]),
        "difference": difference,
    }  # fmt: skip


def lowering():
    """CPU milliseconds of lowering each gallery entry of the races, the median of ten."""
    rows = {}
    for name, (_, (variants, _)) in pairs().items():
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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [
        race(f"{name} {phase}", sides, lengths, options.dtype, options.threads, options.rounds)
        for name, sides in pairs().items()
        for phase, lengths in (("prefill", PREFILL), ("decode", DECODE))
    ]
    found = {"lowering_ms": lowering(), "races": rows}
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
