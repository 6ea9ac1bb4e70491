"""attnloom beside FlashInfer, SDPA and FlexAttention on one GPU, in one run.

    python benchmarks/gpu.py [--only REGEX] [--peers NAMES] [--json FILE] [--plot FILE] [--repeats 30]

Each batch is computed by all, from the same tensors. Every output is compared with float32 attention of some of its
rows before it is timed. Times are medians of CUDA-graph replays, the second-level cache flushed before each. A peer
that is missing or cannot compute a batch is named with the reason.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from gpu_cases import all_cases
from gpu_peers import PEERS, Batch, UnavailableError

CHECKED_ROWS = 8
SETTLE = 0.05
"""Seconds of replays that are not counted. A capture gives the memory of the check back, which may be gigabytes; for
some milliseconds after that, kernels are up to an eighth slower."""

BOUND = {"bfloat16": 0.02, "float8_e4m3fn": 0.08, "float8_e5m2": 0.08}
"""Largest `|out - expected| / |expected|`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that `group/name` must contain")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, with commas")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop before a case once this long has passed")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is false")
        return 1
    chosen, begin = options.peers.split(","), time.monotonic()
    results, refused = [], {}
    for case in all_cases():
        if not re.search(options.only, f"{case.group}/{case.name}"):
            continue
        if time.monotonic() - begin > options.seconds:
            print(f"stopped after {options.seconds} s, before {case.name}")
            break
        measured = measure(case, [name for name in ("attnloom", *case.peers) if name in chosen], options, refused)
        results.append(measured)
        print(line(measured), flush=True)
        if options.json:
            options.json.write_text(json.dumps({**where(), "cases": results, "refused": refused}, indent=1))
    print("\n" + tables(results))
    for text in sorted(refused):
        print(f"not run: {text} ({refused[text]} case(s))")
    if options.plot:
        plot(results, options.plot)
    return 0 if all(entry["right"] for result in results for entry in result["by"].values()) else 1


def measure(case, names: list[str], options, refused: dict) -> dict:
    """Check and time every one of `names` on a case."""
    batch = Batch(case)
    found = {}
    for name in names:
        try:
            run, out = PEERS[name](batch)
            run()
            torch.cuda.synchronize()
            error = error_of(batch, out[0] if isinstance(out, list) else out)
            entry = {"error": round(error, 5), "right": error <= BOUND[case.kv_dtype]}
            if hasattr(run, "plan"):
                entry.update(plan_us=round(host_time(run.plan), 1), run_us=round(host_time(run), 1))
            if hasattr(run, "note"):
                entry["note"] = run.note
            found[name] = {"us": round(replay_time(run, options.repeats), 2), **entry}
        except UnavailableError as reason:
            refused[f"{name}: {reason}"] = refused.get(f"{name}: {reason}", 0) + 1
        except Exception as error:
            text = f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error) else ''}"
            refused[text] = refused.get(text, 0) + 1
        run = out = None
        torch.cuda.synchronize()
    del batch
    gc.collect()
    torch.cuda.empty_cache()
    return {"name": case.name, "group": case.group, "bytes": case.bytes, "flops": case.flops, "by": found}


def error_of(batch: Batch, out) -> float:
    """`|out - expected| / |expected|` over the last rows of the first, the middle and the longest request."""
    case = batch.case
    out = out.reshape(batch.q.shape)
    longest = max(range(len(case.kv_lens)), key=case.kv_lens.__getitem__)
    worst = 0.0
    for request in {0, len(case.kv_lens) // 2, longest}:
        rows = min(CHECKED_ROWS, case.qo_lens[request])
        expected = batch.expected(request, rows)
        given = out[batch.qo_indptr[request + 1] - rows : batch.qo_indptr[request + 1]].float()
        error = ((given - expected).norm() / expected.norm()).item()
        worst = max(worst, error if error == error else float("inf"))
    return worst


def replay_time(run, repeats: int) -> float:
    """Median microseconds of a graph replay with a cold second-level cache, once the device has settled."""
    replay, begin = replay_of(run), time.monotonic()
    while time.monotonic() - begin < SETTLE:
        replay()
    return statistics.median(replay() for _ in range(repeats))


def replay_of(run):
    """A function that replays a graph of `run`, the second-level cache flushed before, and returns its microseconds."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def replay() -> float:
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3

    return replay


def host_time(call, repeats: int = 60) -> float:
    """Median microseconds that a call keeps the host, the device idle before it."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times)


def rate(result: dict, us: float) -> str:
    """Useful work a second: TFLOP/s where there are many queries, else TB/s."""
    if max(result["flops"] / result["bytes"], 1) > 100:
        return f"{result['flops'] / us / 1e6:.0f} TFLOP/s"
    return f"{result['bytes'] / us / 1e6:.2f} TB/s"


def ratio(result: dict) -> float | None:
    """The fastest peer's time over attnloom's."""
    by = result["by"]
    peers = [entry["us"] for name, entry in by.items() if name != "attnloom"]
    return min(peers) / by["attnloom"]["us"] if peers and "attnloom" in by else None


def line(result: dict) -> str:
    shown = []
    for name, entry in result["by"].items():
        wrong = "" if entry["right"] else f" WRONG by {entry['error']}"
        note = f", {entry['note']}" if "note" in entry else ""
        host = f", plan {entry['plan_us']} run {entry['run_us']}" if "plan_us" in entry else ""
        shown.append(f"{name} {entry['us']:.1f} us ({rate(result, entry['us'])}{host}{note}){wrong}")
    best = ratio(result)
    return f"{result['name']}: {'; '.join(shown)}" + (f"; ratio {best:.2f}" if best else "")


def tables(results: list[dict]) -> str:
    """A Markdown table a group; the ratio is the fastest peer's time over attnloom's."""
    lines = []
    for group in dict.fromkeys(result["group"] for result in results):
        rows = [result for result in results if result["group"] == group]
        names = list(dict.fromkeys(name for result in rows for name in result["by"]))
        lines += [f"## {group}", f"| case | {' | '.join(names)} | ratio |", "|---" * (len(names) + 2) + "|"]
        for result in rows:
            times = [result["by"][name]["us"] if name in result["by"] else None for name in names]
            cells = [f"{us:.1f} ({rate(result, us)})" if us else "-" for us in times]
            best = ratio(result)
            lines.append(f"| {result['name']} | {' | '.join(cells)} | {f'{best:.2f}' if best else '-'} |")
        lines.append("")
    return "\n".join(lines)


def where() -> dict:
    """What was measured on."""
    import attnloom

    versions = {"torch": torch.__version__, "attnloom": attnloom.__version__, "cuda": torch.version.cuda}
    try:
        import flashinfer

        versions["flashinfer"] = flashinfer.__version__
    except ImportError:
        pass
    return {"device": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d"), "versions": versions}


def plot(results: list[dict], path: Path) -> None:
    """Bars of the ratio, case by case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [(f"{result['group']}: {result['name']}", ratio(result)) for result in results if ratio(result)]
    figure, axes = pyplot.subplots(figsize=(8, 0.22 * len(rows) + 1))
    axes.barh([name for name, _ in rows], [value for _, value in rows])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlabel("time of the fastest peer / time of attnloom")
    figure.savefig(path, bbox_inches="tight")


if __name__ == "__main__":
    sys.exit(main())
