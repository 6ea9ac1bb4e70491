"""Every storage format on the device, composed and single, against the oracle."""

from __future__ import annotations

import attnloom
import attrs
import numpy as np
import pytest
import torch
from gpu.bench import HARDER


@pytest.mark.parametrize("name", ["causal", "window", "sigmoid"])
@pytest.mark.parametrize(
    "requests",
    [
        [(0, 1, 40)] * 24,
        [(0, 1, 3), (1, 5, 90), (1, 1, 17), (2, 33, 40), (0, 4, 20)],
        [(1, 1, 20)] * 12 + [(0, 2, 30)] * 6,
    ],
)
def test_shared_prefixes(bench, radix_index, rng, name, requests):
    spec = bench.spec(name)
    wrapper = bench.wrapper(spec)
    index, pages = radix_index(rng, requests, roots=(40, 6, 0))
    assert len(index.levels) > 1
    data = bench.tensors(rng, spec, index, pages)
    for form in (index, attrs.evolve(index, single=None), index.single):
        bench.check(wrapper, form, form, data, scale=HARDER.get(name, 1.0))


def test_speculation_trees(bench, rng):
    spec = bench.spec("causal")
    parents = [[-1, 0, 0, 1, 1, 2, 5], [-1, 0, 1, 2], [-1, -1, 0]]
    table = rng.permutation(60).astype(np.int32).reshape(3, 20)
    index = attnloom.storage_format("tree_attention").build_index(
        [7, 4, 3], [300, 4, 60], 16, parents=parents, block_tables=table
    )
    data = bench.tensors(rng, spec, index, 60)
    bench.check(bench.wrapper(spec), index, index, data)


@pytest.mark.parametrize("kv_starts", [None, [700, 0, 300, 100]])
def test_dense_keys(bench, rng, kv_starts):
    spec = bench.spec("causal")
    index = attnloom.storage_format("dense").build_index([3, 1, 0, 60], [200, 100, 50, 130], kv_starts=kv_starts)
    pages = -(-int(index.to_dense().slot.max() + 1) // index.page_size)
    bench.check(bench.wrapper(spec), index, index, bench.tensors(rng, spec, index, pages))


def test_pages_far_into_a_cache(bench, rng, allocate_gib):
    spec = bench.spec("causal")
    wrapper = bench.wrapper(spec)
    table = rng.permutation(40).astype(np.int32).reshape(2, 20)
    build = attnloom.storage_format("page_table").build_index
    index = build([1, 20], [300, 90], 16, block_tables=table)
    data = bench.tensors(rng, spec, index, 40)
    near = bench.check(wrapper, index, index, data)
    far = allocate_gib(36, (2, *data.kv[0].shape[1:]))  # counts of 16 bytes pass 2^31
    far[-40:] = torch.stack(data.kv, dim=1)
    wrapper.plan(build([1, 20], [300, 90], 16, block_tables=table + np.int32(len(far) - 40)))
    assert all(map(torch.equal, near, wrapper.run(data.dq, far, return_lse=True)))


def test_masks_of_single_bits(bench, rng):
    spec = bench.spec("plain")
    requests = [(5, 70), (1, 33), (40, 90)]
    masks = [rng.random(shape) < 0.6 for shape in requests]
    index, host, data = bench.batch(rng, spec, requests, mask=masks)
    bench.check(bench.wrapper(spec), index, host, data)


def test_attention_of_plain_tensors(rng):
    q = torch.from_numpy(rng.standard_normal((2, 30, 8, 64), np.float32)).cuda().half()
    k, v = (torch.from_numpy(rng.standard_normal((2, 50, 2, 64), np.float32)).cuda().half() for _ in range(2))
    out, lse = attnloom.attention(q, k, v, variants=[], return_lse=True)
    wide = (x.float().transpose(1, 2).repeat_interleave(8 // x.shape[2], 1) for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*wide).transpose(1, 2)
    assert out.shape == q.shape and lse.shape == q.shape[:3] and out.device == q.device
    assert (out.float() - expected).abs().max() < 4e-3


def test_merged_states_are_the_whole(bench, rng):
    spec = bench.spec("plain")
    wrapper = bench.wrapper(spec)
    lens, table = ([3, 1], [96, 200]), rng.permutation(40).astype(np.int32).reshape(2, 20)
    build = attnloom.storage_format("page_table").build_index
    index = build(*lens, 16, block_tables=table)
    data = bench.tensors(rng, spec, index, 40)
    states = []
    for low, high in ((0, 500), (0, 50), (50, 500)):
        keys = [np.arange(kv) for kv in lens[1]]
        masks = [np.tile((low <= key) & (key < high), (qo, 1)) for qo, key in zip(lens[0], keys, strict=True)]
        wrapper.plan(build(*lens, 16, block_tables=table, mask=masks))
        states.append(wrapper.run(data.dq, data.kv, return_lse=True))
    out, lse = attnloom.merge_states(states[1:])
    assert (out - states[0][0]).abs().max() < 4e-3 and (lse - states[0][1]).abs().max() < 2e-3


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_append_then_read(bench, rng, kv_dtype):
    index, _, _ = bench.paged(rng, [(5, 40), (1, 17), (0, 3)], 16, on_device=True)
    cache = tuple(torch.zeros(20, 16, 2, 64, device="cuda", dtype=torch.bfloat16).to(kv_dtype) for _ in range(2))
    k, v = (torch.from_numpy(rng.standard_normal((6, 2, 64), np.float32)).cuda() for _ in range(2))
    attnloom.append_kv(k, v, cache, index, k_scale=0.5)
    from attnloom.append import token_slots

    slots = torch.from_numpy(token_slots(index)).cuda()
    written = cache[0].float().view(-1, 2, 64)[slots] * 0.5
    assert (written - k).abs().max() < (0.02 if kv_dtype == torch.bfloat16 else 0.15)
    assert cache[1].float().view(-1, 2, 64)[slots].sub(v).abs().max() < (0.02 if kv_dtype == torch.bfloat16 else 0.3)
    assert cache[0].float().abs().sum().item() == pytest.approx(written.abs().sum().item() * 2, rel=1e-3)


def test_append_waits_for_nothing_and_can_be_captured(rng):
    cache = tuple(torch.zeros(4, 2, 16, 64, device="cuda", dtype=torch.float16).transpose(1, 2) for _ in range(2))
    k, v = (torch.from_numpy(rng.standard_normal((3, 2, 64), np.float32)).cuda() for _ in range(2))
    slots = torch.tensor([5, -1, 40], device="cuda", dtype=torch.int32)
    attnloom.append_kv(k, v, cache, slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attnloom.append_kv(k, v, cache, slots)
    slots.copy_(torch.tensor([63, 0, -7], device="cuda"))
    k.add_(1)
    graph.replay()
    flat = cache[0].reshape(64, 2, 64).float()
    assert (flat[[63, 0]] - k[:2]).abs().max() < 4e-3 and (flat[[5, 40]] - k[[0, 2]] + 1).abs().max() < 4e-3
    untouched = [slot for slot in range(64) if slot not in (0, 5, 40, 63)]
    assert not flat[untouched].any()
    with pytest.raises(attnloom.IndexFormatError, match="slot 64 is past the end of a cache of 64 slots"):
        attnloom.append_kv(k, v, cache, [1, 2, 64])
