"""Small batches of every kind of kernel, for tools that watch memory.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python tests/gpu/small_cases.py

Tensors are allocated one by one, so that a step past one of them is seen. racecheck takes the same command.
"""

from __future__ import annotations

import sys

import attnloom
import numpy as np
import torch

CHAINS = {
    "causal": (["causal"], {}),
    "rope": (["rope", "sliding_window", "sinks"], {"sliding_window.left": 9, "sinks.sinks": np.zeros(4, np.float32)}),
    "sigmoid": (["causal", "sigmoid"], {}),
}
BATCHES = ([(1, 130), (1, 0), (1, 17)], [(20, 40), (3, 3), (0, 5)])


def main() -> int:
    rng = np.random.default_rng(1)
    for name, (variants, params) in CHAINS.items():
        for kv_dtype in ("float16", "float8_e4m3fn") if name == "causal" else ("float16",):
            spec = attnloom.AttentionSpec(
                variants, num_qo_heads=4, num_kv_heads=2, head_dim=64, dtype="float16", kv_dtype=kv_dtype, params=params
            )
            wrapper = attnloom.AttentionWrapper(spec, "cuda", num_workers=5)
            for requests in BATCHES:
                run(rng, wrapper, requests)
        print(f"{name}: done", flush=True)
    return 0


def run(rng, wrapper, requests) -> None:
    """Append a batch's keys, and attend to them."""
    spec, page = wrapper.spec, 4
    width = max(-(-kv // page) for _, kv in requests)
    table = rng.permutation(len(requests) * width).astype(np.int32).reshape(len(requests), width)
    lens = [qo for qo, _ in requests], [kv for _, kv in requests]
    index = attnloom.storage_format("page_table").build_index(*lens, page, block_tables=table)
    cache = tuple(torch.zeros(table.size, page, 2, 64, device="cuda").to(getattr(torch, spec.kv_dtype)) for _ in "kv")
    slots = index.to_dense().slot
    slots = torch.from_numpy(np.unique(slots[slots >= 0])).cuda()
    attnloom.append_kv(*(torch.randn(len(slots), 2, 64, device="cuda") for _ in "kv"), cache, slots)
    wrapper.plan(index)
    q = torch.randn(index.num_tokens, 4, 64, device="cuda", dtype=torch.float16)
    out = wrapper.run(q, cache)
    torch.cuda.synchronize()
    assert not out.isnan().any()


if __name__ == "__main__":
    sys.exit(main())
