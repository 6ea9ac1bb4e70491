"""Measure this machine: `python -m attnloom_measured_tiles.measure` prints lines for `table.toml`."""

import time

LINES = (
    ("float32", "float32", 64),
    ("float32", "float32", 128),
    ("bfloat16", "bfloat16", 128),
    ("bfloat16", "bfloat16", 256),
)
KEYS = (64, 128)
ROWS = (64, 96)
BATCHES = (([1] * 8, [1024] * 8), ([256], [256]))
"""A decode step and a prompt: query tokens and keys of each request."""
SHORT = 16
"""Rows of the short tile: a decode step of any usual group."""


def main() -> None:
    """Print the fastest tiles of each line."""
    from attnloom_measured_tiles.choose import BYTES

    for dtype, kv_dtype, head_dim in LINES:
        times = {(rows, keys): seconds(dtype, kv_dtype, head_dim, rows, keys) for rows in ROWS for keys in KEYS}
        (rows, keys), best = min(times.items(), key=lambda item: item[1])
        print(f"# {1e3 * best:.2f} ms; the slowest of {len(times)} took {1e3 * max(times.values()):.2f} ms")
        line = {"bytes": BYTES[kv_dtype], "head_dim": head_dim, "rows": [SHORT, rows], "keys": keys}
        print("\n".join(["[[host]]", *(f"{key} = {value}" for key, value in line.items()), ""]), flush=True)


def seconds(dtype: str, kv_dtype: str, head_dim: int, rows: int, keys: int) -> float:
    """The best time of a decode step and a prompt with these tiles, added up."""
    import attnloom
    import torch
    from attnloom.dtypes import torch_dtype

    spec = attnloom.AttentionSpec(
        ["causal"],
        num_qo_heads=8,
        num_kv_heads=2,
        head_dim=head_dim,
        dtype=dtype,
        kv_dtype=kv_dtype,
        tile=attnloom.Tile(rows, keys),
    )
    wrapper = attnloom.AttentionWrapper(spec, num_threads=1, num_workers=1)
    total = 0.0
    for qo_lens, kv_lens in BATCHES:
        wrapper.plan(attnloom.storage_format("dense").build_index(qo_lens, kv_lens))
        q = torch.randn(sum(qo_lens), 8, head_dim).to(torch_dtype(dtype))
        k, v = (torch.randn(1, sum(kv_lens), 2, head_dim).to(torch_dtype(kv_dtype)) for _ in "kv")
        total += min(timed(wrapper, q, k, v) for _ in range(40))
    return total


def timed(wrapper, q, k, v) -> float:
    """The time of one run."""
    begin = time.perf_counter()
    wrapper.run(q, (k, v))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
