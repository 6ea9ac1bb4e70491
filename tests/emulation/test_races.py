"""What emulation sees: kernels whose waits, fences or barriers do nothing, operands that lie elsewhere, unknown PTX."""

from __future__ import annotations

import shutil

import attnloom
import attrs
import numpy as np
import pytest
from attnloom import jit
from emulation.bench import same_bits
from emulation.ptx import translate

BATCH = [(1, 150), (70, 200)]
SEEN = "emulation: thread|holds NaN|is off by"


@pytest.mark.parametrize(
    "kernel, ignored",
    [
        ("causal", "cp.async.wait_group"),
        ("window", "__syncwarp"),
        ("wgmma", "cp.async.wait_group"),
        ("wgmma", "fence.proxy.async"),
        ("wgmma_e4m3_rope", "fence.proxy.async"),
        ("teams", "fence.proxy.async"),
        ("wgmma", "wgmma.fence"),
        ("teams", "wgmma.fence"),
        ("wgmma", "wgmma.wait_group"),
        ("teams", "wgmma.wait_group"),
    ],
)
def test_missing(bench, rng, kernel, ignored):
    wrapper = bench.wrapper(kernel)
    index, host, data = bench.batch(rng, wrapper.spec, BATCH)
    bench.check(wrapper, index, host, data, scale=4.0)
    with pytest.raises((RuntimeError, AssertionError), match=SEEN):
        out, lse = bench.run(wrapper, data, ignored=ignored.encode())
        bench.compare(wrapper, host, data, out, lse, scale=4.0)


@pytest.mark.parametrize(
    "kernel, header, barrier, occurrence, requests",
    [
        ("causal", "merge.cuh", "sync<S>();", 0, [(1, 600), (1, 500), (1, 400)]),
        ("causal", "many_rows.cuh", "__syncthreads();", 2, [(33, 100)]),
        ("wgmma", "wgmma_rows.cuh", "__syncthreads();", 2, [(33, 100)]),
        ("teams_groups_of_3", "copiers.cuh", "publish();", 0, [(33, 100)]),
        ("teams", "copiers.cuh", "publish();", 1, [(33, 100)]),
        ("teams", "copiers.cuh", "ring.wait_empty(at);", 0, [(64, 640)]),
        ("teams", "copiers.cuh", "pipeline.queries.wait_empty(at);", 0, [(64, 128)] * 3),
        ("teams", "team_rows.cuh", "pipeline.queries.wait_full(own(progresses).queries);", 0, [(64, 128)]),
        ("teams", "team_rows.cuh", "keys.wait_full(at);", 0, [(64, 128)]),
        ("teams", "team_rows.cuh", "ends_soon(values.full[at.place()], at.parity()) &", 0, [(64, 640)]),
    ],
)
def test_missing_barrier(bench, rng, tmp_path, kernel, header, barrier, occurrence, requests):
    shutil.copytree(jit.include_dirs()[0], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "attnloom/cuda" / header
    parts = path.read_text().split(barrier)
    assert len(parts) > occurrence + 1
    path.write_text(barrier.join(parts[: occurrence + 1]) + barrier.join(parts[occurrence + 1 :]))
    wrapper = bench.wrapper(kernel, headers=(str(tmp_path),), num_workers=1 if kernel.startswith("teams") else 100)
    index, host, data = bench.batch(rng, wrapper.spec, requests)
    wrapper.plan(index)
    with pytest.raises((RuntimeError, AssertionError), match=SEEN):
        for seed in range(60):
            bench.compare(wrapper, host, data, *bench.run(wrapper, data, seed=seed))


def test_threads_that_fall_behind(bench, rng):
    """However late a lane looks at a barrier, the phase that it waits for is not over twice by then."""
    wrapper = bench.wrapper("teams", num_workers=1)
    parents = [[-1, *(node // 2 for node in range(24))]]
    build = attnloom.storage_format("tree_attention").build_index
    index = build([25], [375], 16, parents=parents, block_tables=rng.permutation(24).astype(np.int32)[None])
    data = bench.tensors(rng, wrapper.spec, index, 24)
    first = bench.check(wrapper, index, index, data)
    for seed in range(2, 100):
        again = bench.run(wrapper, data, seed=seed)
        assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))


def test_merge_that_does_not_wait(bench, radix_index, rng):
    wrapper = bench.wrapper("wgmma")
    index, pages = radix_index(rng, [(0, 1, 40)] * 6, roots=(20, 6, 0))
    wrapper.plan(attrs.evolve(index, single=None))
    assert wrapper._plan.args.merge_pass
    with pytest.raises(RuntimeError, match=r"reads before griddepcontrol\.wait"):
        bench.run(wrapper, bench.tensors(rng, wrapper.spec, index, pages), ignored=b"griddepcontrol.wait")


def test_page_outside_the_cache(bench, rng):
    wrapper = bench.wrapper("causal")
    index, _, data = bench.batch(rng, wrapper.spec, BATCH, spare=0)
    data.kv = tuple(cache[:-1] for cache in data.kv)
    wrapper.plan(index)
    index.levels[0].indices[...] = np.where(index.levels[0].indices < len(data.kv[0]), index.levels[0].indices, 10**6)
    wrapper._plan.enough_pages = 0
    with pytest.raises(RuntimeError, match="reads 16 bytes outside all tensors"):
        bench.run(wrapper, data)


def test_unknown_instruction():
    with pytest.raises(NotImplementedError, match="knows no 'bar.arrive 1, 64'"):
        translate('void f() { asm volatile("bar.arrive 1, 64;" ::: "memory"); }')


def test_operands():
    statement = 'asm volatile("ex2.approx.f32 %0," " %1;" : "=f"(y[f(a, b)]) : "f"(x ? g(1) : 2) : "memory");'
    assert translate(statement) == "::emulation::exp2(y[f(a, b)], x ? g(1) : 2);"
