"""Microseconds of `plan()`: `python benchmarks/plan.py [--wrapper] [--cuda] [--json FILE]`.

The planner alone, Python call included, in decode (one token a request, a padded page table) and in prefill, at 132
workers; with `--wrapper` also `AttentionWrapper.plan` on a causal host kernel, and `build_index`; with `--cuda` `plan`
and `run(out=)` of a CUDA kernel, the device idle before each call. Medians and, in the JSON, minima too: what the work
itself takes on a machine that does other things too.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
from attnloom.abi import IndexView
from attnloom.jit import scheduler_library
from attnloom_scheduler import PlanInput, Planner, address_of, costs

WORKERS, PAGE_SIZE, HEAD_DIM = 132, 16, 128
HEADS = ((32, 8), (32, 32))
REQUESTS = (1, 16, 64, 256, 1024)
PREFILL = ((8, 512), (8, 4096), (64, 2048))


def lengths(kind: str, requests: int) -> np.ndarray:
    """Keys of each request, 1 to 8,192."""
    rng = np.random.default_rng(requests)
    drawn = {
        "const": lambda: np.full(requests, 2048),
        "uniform": lambda: rng.integers(1, 8193, requests),
        "zipf": lambda: np.minimum(rng.zipf(1.3, requests) * PAGE_SIZE, 8192),
    }
    return drawn[kind]().astype(np.int32)


def index_view(qo_lens, kv_lens) -> IndexView:
    """One level, one block row a request."""
    requests = len(kv_lens)
    arrays = {
        "row_indptr": np.concatenate([[0], np.cumsum(qo_lens)]).astype(np.int32),
        "token_request": np.repeat(np.arange(requests), qo_lens).astype(np.int32),
        "kv_len": np.asarray(kv_lens, np.int32),
        "zeros": np.zeros(requests, np.int32),
        "page_begin": np.arange(requests, dtype=np.int64) * (8192 // PAGE_SIZE),
    }
    at = {name: address_of(array) for name, array in arrays.items()}
    view = IndexView(qo_indptr=at["row_indptr"], token_request=at["token_request"], page_size=PAGE_SIZE, num_levels=1)
    view.num_requests, view.num_tokens = requests, len(arrays["token_request"])
    level = view.levels[0]
    level.row_indptr, level.kv_len, level.page_begin = at["row_indptr"], at["kv_len"], at["page_begin"]
    level.kv_start = level.kv_offset = at["zeros"]
    level.num_rows = requests
    view.arrays = arrays
    return view


def plan_input(view: IndexView, qo_heads: int, kv_heads: int) -> PlanInput:
    short, tall = costs.TABLE["mma"], costs.TABLE["wgmma"]
    group = qo_heads // kv_heads
    dims = {"head_dim": HEAD_DIM, "head_dim_v": HEAD_DIM, "kv_itemsize": 2}
    return PlanInput(
        classes=[
            costs.tile_class(short, 16, 64, rows=min(16, group), **dims),
            costs.tile_class(tall, 128, 64, rows=128, **dims),
        ],
        num_workers=WORKERS,
        num_kv_heads=kv_heads,
        group=group,
        merge_base=short.merge_base,
        gamma=costs.merge_row(short, HEAD_DIM),
        cache_bytes=short.cache_bytes,
        kv_bytes_per_key=4 * HEAD_DIM,
        index=ctypes.addressof(view),
    )


def timed(call, repeats: int, before=lambda: None) -> dict[str, float]:
    for _ in range(10):
        call()
    samples = []
    for _ in range(repeats):
        before()
        start = time.perf_counter_ns()
        call()
        samples.append((time.perf_counter_ns() - start) / 1e3)
    return {"median_us": round(statistics.median(samples), 1), "min_us": round(min(samples), 1)}


def measure_planner(repeats: int):
    planner = Planner(scheduler_library())
    decode = [("decode", n, kind, np.ones(n, np.int32), lengths(kind, n)) for n in REQUESTS for kind in KINDS]
    prefill = [("prefill", n, f"{q} tokens", np.full(n, q), np.full(n, q)) for n, q in PREFILL]
    for phase, requests, kind, qo_lens, kv_lens in decode + prefill:
        view = index_view(qo_lens, kv_lens)
        for qo_heads, kv_heads in HEADS:
            inputs = plan_input(view, qo_heads, kv_heads)
            row = timed(lambda inputs=inputs: planner.plan(inputs), repeats)
            plan = planner.plan(inputs)
            yield {
                "what": f"planner, {phase}",
                "requests": requests,
                "lengths": kind,
                "heads": f"{qo_heads}/{kv_heads}",
                **row,
                "partitioner": plan.partitioner,
                "items": plan.num_items,
                "merges": plan.num_merge,
                "max_over_mean": round(plan.busiest * WORKERS / max(plan.total, 1), 3),
            }


def measure_wrapper(repeats: int):
    import attnloom

    page_table = attnloom.storage_format("page_table")
    for qo_heads, kv_heads in HEADS:
        spec = attnloom.AttentionSpec(["causal"], qo_heads, kv_heads, 64, dtype="float32")
        attn = attnloom.AttentionWrapper(spec, num_workers=WORKERS)
        for requests in REQUESTS:
            kv_lens = lengths("zipf", requests)
            given = (np.ones(requests, np.int32), kv_lens, PAGE_SIZE)
            tables = np.zeros((requests, 8192 // PAGE_SIZE), np.int32)
            index = page_table.build_index(*given, block_tables=tables)
            calls = {
                "wrapper, decode": lambda attn=attn, index=index: attn.plan(index),
                "build_index": lambda given=given, tables=tables: page_table.build_index(*given, block_tables=tables),
            }
            for what, call in calls.items():
                row = timed(call, repeats)
                yield {"what": what, "requests": requests, "lengths": "zipf", "heads": f"{qo_heads}/{kv_heads}", **row}


def measure_cuda(repeats: int):
    """`plan` of one index and of others each time, `run(out=)`, and beside them the cheapest operation of torch."""
    import attnloom
    import torch

    torch.set_grad_enabled(False)
    page_table = attnloom.storage_format("page_table")
    table = np.arange(REQUESTS[-1] * 64, dtype=np.int32).reshape(-1, 64)

    def index_of(requests: int):
        given = np.ones(requests, np.int32), np.full(requests, 1024, np.int32), PAGE_SIZE
        return page_table.build_index(*given, block_tables=table[:requests].copy())

    for qo_heads, kv_heads in HEADS:
        attn = attnloom.AttentionWrapper(attnloom.AttentionSpec(["causal"], qo_heads, kv_heads, HEAD_DIM), "cuda")
        cache = torch.zeros(table.size, PAGE_SIZE, kv_heads, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        one = torch.zeros(1, device="cuda")
        for requests in REQUESTS:
            q = torch.zeros(requests, qo_heads, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
            out, index = torch.empty_like(q), index_of(requests)
            others = iter([index_of(requests) for _ in range(repeats + 10)])
            calls = {
                "cuda, plan": lambda attn=attn, index=index: attn.plan(index),
                "plan, new index": lambda attn=attn, others=others: attn.plan(next(others)),
                "cuda, run(out=)": lambda attn=attn, q=q, kv=(cache, cache), out=out: attn.run(q, kv, out=out),
                "torch add_": lambda one=one: one.add_(1),
            }
            for what, call in calls.items():
                row = timed(call, repeats, torch.cuda.synchronize)
                yield {"what": what, "requests": requests, "lengths": "1024", "heads": f"{qo_heads}/{kv_heads}", **row}


KINDS = ("const", "uniform", "zipf")
COLUMNS = ("what", "requests", "lengths", "heads", "median_us", "items", "merges", "max_over_mean", "partitioner")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wrapper", action="store_true", help="also time AttentionWrapper.plan and build_index")
    parser.add_argument("--cuda", action="store_true", help="also time plan and run(out=) on a GPU")
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    rows = []
    print(" ".join(f"{name:>15}" for name in COLUMNS))
    sources = [measure_planner(options.repeats)]
    sources += [measure_wrapper(options.repeats)] if options.wrapper else []
    sources += [measure_cuda(options.repeats)] if options.cuda else []
    for row in (row for source in sources for row in source):
        rows.append(row)
        print(" ".join(f"{row.get(name, '')!s:>15}" for name in COLUMNS), flush=True)
    if options.json:
        machine = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
        options.json.write_text(json.dumps({**machine, "workers": WORKERS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
