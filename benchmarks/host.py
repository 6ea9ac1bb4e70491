"""Host kernels beside torch: `python benchmarks/host.py [--json FILE] [--repeats N] [--threads N]`.

Dense causal prefill against `scaled_dot_product_attention(is_causal=True)`, and paged decode against gathering the
pages and then attending. Both sides take turns in one process on the same threads; times are milliseconds, minimum and
median. FLOP are those of the visible pairs, bytes those of K and V read once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

import attnloom
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

PAGE_SIZE, HEAD_DIM = 16, 64
DTYPES = (torch.float32, torch.bfloat16)


def paged(lens: list[int], heads: int, dtype, rng) -> tuple:
    """`(block_tables [requests, most], k, v)`: shuffled pages for `lens` keys a request."""
    counts = [-(-n // PAGE_SIZE) for n in lens]
    order = rng.permutation(sum(counts)).astype(np.int32)
    tables = np.zeros((len(lens), max(counts)), np.int32)
    for row, (count, at) in enumerate(zip(counts, np.cumsum([0, *counts]), strict=False)):
        tables[row, :count] = order[at : at + count]
    shape = (sum(counts), PAGE_SIZE, heads, HEAD_DIM)
    return tables, torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)


def wrapper_of(qo_lens, kv_lens, tables, heads, kv_heads, dtype):
    """A planned wrapper."""
    spec = attnloom.AttentionSpec(
        variants=["causal"], num_qo_heads=heads, num_kv_heads=kv_heads, head_dim=HEAD_DIM, dtype=dtype
    )
    attention = attnloom.AttentionWrapper(spec, device="cpu")
    build = attnloom.storage_format("page_table").build_index
    attention.plan(build(qo_lens=qo_lens, kv_lens=kv_lens, page_size=PAGE_SIZE, block_tables=tables))
    return attention


def prefill(dtype, requests=8, length=512, heads=16):
    """`(name, ours, torch's, FLOP, bytes)` of a dense causal prefill."""
    rng = np.random.default_rng(0)
    lens = [length] * requests
    tables, k, v = paged(lens, heads, dtype, rng)
    q = torch.randn(requests * length, heads, HEAD_DIM).to(dtype)
    attention = wrapper_of(lens, lens, tables, heads, heads, dtype)
    dense = [x[torch.from_numpy(tables).long()].view(requests, length, heads, HEAD_DIM).transpose(1, 2) for x in (k, v)]
    dense = [q.view(requests, length, heads, HEAD_DIM).transpose(1, 2), *dense]
    dense = [x.contiguous() for x in dense]
    flop = 4 * requests * heads * HEAD_DIM * length * (length + 1) // 2
    name = f"prefill {requests} x {length}, {heads} heads"

    def ours():
        return attention.run(q, (k, v))

    def theirs():
        return scaled_dot_product_attention(*dense, is_causal=True).transpose(1, 2).reshape(q.shape)

    return name, ours, theirs, flop, k.nbytes + v.nbytes


def decode(dtype, requests=32, length=2048, heads=16, kv_heads=4):
    """The same of a decode step over pages."""
    rng = np.random.default_rng(0)
    tables, k, v = paged([length] * requests, kv_heads, dtype, rng)
    q = torch.randn(requests, heads, HEAD_DIM).to(dtype)
    attention = wrapper_of([1] * requests, [length] * requests, tables, heads, kv_heads, dtype)
    pages = torch.from_numpy(tables).long()
    flop = 4 * requests * heads * HEAD_DIM * length
    name = f"decode {requests} x {length}, {heads}/{kv_heads} heads"

    def ours():
        return attention.run(q, (k, v))

    def theirs():
        gathered = [x[pages].view(requests, length, kv_heads, HEAD_DIM).transpose(1, 2) for x in (k, v)]
        out = scaled_dot_product_attention(q.view(requests, heads, 1, HEAD_DIM), *gathered, enable_gqa=True)
        return out.view(q.shape)

    return name, ours, theirs, flop, k.nbytes + v.nbytes


def measure(case, dtype, repeats: int) -> dict:
    """Milliseconds of both sides, in turns."""
    name, ours, theirs, flop, nbytes = case(dtype)
    error = (ours().float() - theirs().float()).abs().max().item()
    times: dict = {ours: [], theirs: []}
    for _ in range(repeats):
        for run, taken in times.items():
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) * 1e3)
    best, median = (statistic(times[ours]) for statistic in (min, statistics.median))
    torch_best, torch_median = (statistic(times[theirs]) for statistic in (min, statistics.median))
    return {
        "case": name,
        "dtype": str(dtype).removeprefix("torch."),
        "ms": best,
        "ms_median": median,
        "torch_ms": torch_best,
        "torch_ms_median": torch_median,
        "ratio": torch_best / best,
        "ratio_median": torch_median / median,
        "gflops": flop / best / 1e6,
        "gbytes_per_s": nbytes / best / 1e6,
        "max_difference": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = []
    print(f"{platform.machine()}, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    for case in (prefill, decode):
        for dtype in DTYPES:
            row = measure(case, dtype, options.repeats)
            rows.append(row)
            print(
                f"{row['case']:32} {row['dtype']:9} {row['ms']:8.2f} ms (median {row['ms_median']:.2f}), "
                f"torch {row['torch_ms']:.2f} ({row['torch_ms_median']:.2f}): "
                f"{row['ratio']:.2f}x ({row['ratio_median']:.2f}x), "
                f"{row['gflops']:.0f} GFLOP/s, {row['gbytes_per_s']:.1f} GB/s"
            )
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
