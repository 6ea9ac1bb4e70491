"""Small batches of every kind of kernel and of merge, for tools that watch memory.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python tests/gpu/small_cases.py

Tensors are allocated one by one, so that a step past one of them is seen. racecheck takes the same command.
"""

from __future__ import annotations

import sys

import attnloom
import attrs
import numpy as np
import torch
from attnloom.targets import target_of

TEAMS = attnloom.TileChoice(short=attnloom.Tile(16, 128, "mma"), tall=attnloom.Tile(128, 128, "wgmma"))
CHAINS = {
    "causal": (["causal"], {}),
    "rope": (["rope", "sliding_window", "sinks"], {"sliding_window.left": 9, "sinks.sinks": np.zeros(4, np.float32)}),
    "sigmoid": (["causal", "sigmoid"], {}),
}
PAGE = 8  # of a box
BATCHES = ([(1, 130), (1, 0), (1, 17)], [(20, 40), (3, 3), (0, 5)], [(1, 700), (2, 330)], [(90, 400), (70, 70)])


def main() -> int:
    rng = np.random.default_rng(1)
    hopper = "wgmma" in target_of(torch.device("cuda", 0)).families
    for name, (variants, params) in CHAINS.items():
        others = [{"kv_dtype": "float8_e4m3fn"}, *([{"tile": TEAMS}] if hopper else [])] if name == "causal" else []
        for how in ({}, *others):
            spec = attnloom.AttentionSpec(
                variants, num_qo_heads=4, num_kv_heads=2, head_dim=64, dtype="float16", params=params, **how
            )
            wrapper = attnloom.AttentionWrapper(spec, "cuda", num_workers=5)
            for requests in BATCHES:
                run(wrapper, *paged(rng, requests))
            run(wrapper, *shared())
        print(f"{name}: done", flush=True)
    return 0


def paged(rng, requests):
    """An index of shuffled pages, and how many pages there are."""
    width = max(-(-kv // PAGE) for _, kv in requests)
    table = rng.permutation(len(requests) * width).astype(np.int32).reshape(len(requests), width)
    lens = [qo for qo, _ in requests], [kv for _, kv in requests]
    return attnloom.storage_format("page_table").build_index(*lens, PAGE, block_tables=table), table.size


def shared():
    """An index of two levels, which a launch of its own merges."""
    tables = [[*range(100), 100 + row] for row in range(12)]
    build = attnloom.storage_format("radix_tree").build_index
    index = build([1] * 12, [101 * PAGE] * 12, PAGE, block_tables=tables)
    return attrs.evolve(index, single=None), 112  # a plan may not choose the single form


def run(wrapper, index, pages) -> None:
    """Append a batch's keys, and attend to them twice by one plan."""
    spec = wrapper.spec
    cache = tuple(torch.zeros(pages, PAGE, 2, 64, device="cuda").to(getattr(torch, spec.kv_dtype)) for _ in "kv")
    slots = index.to_dense().slot
    slots = torch.from_numpy(np.unique(slots[slots >= 0])).cuda()
    attnloom.append_kv(*(torch.randn(len(slots), 2, 64, device="cuda") for _ in "kv"), cache, slots)
    wrapper.plan(index)
    q = torch.randn(index.num_tokens, 4, 64, device="cuda", dtype=torch.float16)
    out = wrapper.run(q, cache)
    again = wrapper.run(q, cache)
    torch.cuda.synchronize()
    assert not out.isnan().any() and torch.equal(out, again)


if __name__ == "__main__":
    sys.exit(main())
