"""Streams and devices: the current one of torch counts, and a plan is seen where it is run."""

from __future__ import annotations

import attnloom
import pytest
import torch


def test_a_stream_of_the_users(bench, rng):
    wrapper = bench.wrapper(bench.spec("causal"))
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 800), (20, 90)])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        bench.check(wrapper, index, host, data)


def test_a_run_waits_for_a_plan_of_another_stream(bench, rng):
    wrapper = attnloom.AttentionWrapper(bench.spec("causal"), "cuda")
    one, host, data = bench.batch(rng, wrapper.spec, [(1, 800), (20, 90)])
    other, other_host, other_data = bench.batch(rng, wrapper.spec, [(1, 30)] * 21)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        wrapper.plan(one)
    out, lse = bench.run(wrapper, data)
    wrapper.plan(other)
    other_out, other_lse = bench.run(wrapper, other_data)
    bench.compare(wrapper, host, data, out, lse)
    bench.compare(wrapper, other_host, other_data, other_out, other_lse)


def test_planning_does_not_wait_for_the_device(bench, rng):
    wrapper = bench.wrapper(bench.spec("causal"))
    index, _, data = bench.batch(rng, wrapper.spec, [(1, 800), (20, 90)])
    wrapper.plan(index)
    bench.run(wrapper, data)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    event = torch.cuda.Event()
    event.record()
    wrapper.plan(index)
    wrapper.run(data.dq, data.kv)
    assert not event.query(), "plan or run waited for the device"
    torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device: a second one is needed")
def test_the_second_device(bench, rng):
    spec = bench.spec("causal")
    wrapper = attnloom.AttentionWrapper(spec, "cuda:1")
    index, host, data = bench.batch(rng, spec, [(1, 800), (20, 90)])
    kv = tuple(cache.to("cuda:1") for cache in data.kv)
    wrapper.plan(index)
    out, lse = wrapper.run(data.dq.to("cuda:1"), kv, return_lse=True)
    assert out.device.index == 1 and torch.cuda.current_device() == 0
    bench.compare(wrapper, host, data, out, lse)
    with pytest.raises(attnloom.RunError, match="q is on cuda:0, but the kernel runs on cuda:1"):
        wrapper.run(data.dq, kv)
