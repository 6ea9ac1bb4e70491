"""The bench of `tests/gpu` whose device is this CPU."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import attnloom
import torch
from attnloom.kernel import describe
from attnloom.targets import CudaTarget
from emulation.emulated import EmulationEngine, open_library
from gpu.bench import Bench, make_spec

AMPERE, HOPPER = "sm_80", "sm_90a"

ONE_TEAM, TEAMS = (
    {"tile": attnloom.TileChoice(short=attnloom.Tile(16, keys, "mma"), tall=attnloom.Tile(128, keys, "wgmma"))}
    for keys in (64, 128)
)
"""Tiles for Hopper: of 64 keys, where all warps of a block do the same, and of 128, where it has two teams."""

KERNELS = {
    "causal": (AMPERE, "causal", {}),
    "soft_cap": (AMPERE, "soft_cap", {}),
    "window": (AMPERE, "window", {"head_dim": 64}),
    "rope_d256": (AMPERE, "window", {"head_dim": 256}),
    "rope_part": (HOPPER, "qk_norm", {"head_dim": 128, "params": {"rope.rotary_dim": 64, "rope.offset": 2**24 - 999}}),
    "sigmoid": (AMPERE, "sigmoid", {}),
    "plain": (AMPERE, "plain", {}),
    "e4m3": (AMPERE, "e4m3", {"head_dim": 64}),
    "e5m2": (AMPERE, "e5m2", {}),
    "invariant": (AMPERE, "soft_cap", {"head_dim": 64, "batch_invariant": True}),
    "wgmma": (HOPPER, "causal", ONE_TEAM),
    "wgmma_plain": (HOPPER, "plain", ONE_TEAM),
    "wgmma_window": (HOPPER, "window", {"head_dim": 64, **ONE_TEAM}),
    "wgmma_e4m3_rope": (HOPPER, "e4m3_rope", ONE_TEAM),
    "teams": (HOPPER, "causal", TEAMS),
    "teams_groups_of_3": (HOPPER, "causal", {"num_qo_heads": 6, "head_dim": 64, **TEAMS}),  # no box holds its queries
    "teams_plain": (HOPPER, "plain", TEAMS),
    "teams_d80": (HOPPER, "d80", {"dtype": "float16", **TEAMS}),
    "teams_window": (HOPPER, "window", {"variants": ["sliding_window", "sinks"], "head_dim": 64, **TEAMS}),
    "teams_soft_cap": (HOPPER, "soft_cap", TEAMS),
    "teams_capped_alibi": (HOPPER, "capped_alibi", TEAMS),
}
"""Of each kernel the architecture, the spec of `tests/gpu`, and what is changed in it."""

AHEAD = {"teams_rope": (HOPPER, "window", {"head_dim": 64, **TEAMS})}
"""Those whose keys are transformed ahead in every run."""


class EmulationBench(Bench):
    """Wrappers by kernel, batches, and the check, for several orders of threads."""

    device = torch.device("cpu")

    def _compile(self):
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_open_kernel, [*KERNELS.values(), *AHEAD.values()]))

    def wrapper(self, kernel, *, num_workers=7, headers=(), **options):
        """A wrapper of a kernel; folders of `headers` are looked at before those that ship."""
        arch, name, changes = {**KERNELS, **AHEAD}[kernel]
        key = (kernel, num_workers, headers, tuple(sorted(options.items())))
        if key not in self._wrappers:
            engine = functools.partial(_open_engine, arch=arch, headers=headers)
            with mock.patch("attnloom.wrapper.open_engine", engine):
                wrapper = attnloom.AttentionWrapper(
                    make_spec(name, **changes), "cpu", num_workers=num_workers, **options
                )
            self._wrappers[key] = wrapper
        return self._wrappers[key]

    def run(self, wrapper, data, *, seed=0, ignored=None, **options):
        """A run in the order of `seed`, in which the instruction `ignored` does nothing."""
        wrapper._engine.seed, wrapper._engine.ignored = seed, ignored
        return super().run(wrapper, data, **options)

    def check(self, wrapper, index, host_index, data, *, params=None, scale=1.0, **scales):
        """Plan, compare with the oracle, and run again in another order, which changes no bit."""
        first = super().check(wrapper, index, host_index, data, params=params, scale=scale, **scales)
        again = self.run(wrapper, data, seed=1, **scales)
        assert all(same_bits(a, b) for a, b in zip(first, again, strict=True)), "bits depend on the order of threads"
        return first


def _open_kernel(kernel):
    arch, name, changes = kernel
    open_library(describe(make_spec(name, **changes), CudaTarget(arch))[2], arch)


def same_bits(a, b):
    """Whether two tensors, or two nothings, are the same bytes."""
    return a is b or torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _open_engine(device, spec, limits, *, num_threads, num_workers, arch, headers):
    return EmulationEngine(spec, limits, arch=arch, num_workers=num_workers, headers=headers)
