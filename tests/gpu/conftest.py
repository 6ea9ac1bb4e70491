"""Tests on a CUDA device, skipped by name where there is none."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.bench import Bench


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    here = __file__.rpartition("/")[0]
    mark = pytest.mark.skip(reason="no CUDA device: torch.cuda.is_available() is false")
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(mark)


@pytest.fixture(scope="session")
def bench():
    return Bench()


@pytest.fixture
def allocate_gib():
    """`allocate_gib(gib, shape)`: a bfloat16 tensor of pages of `shape`, or a skip where there is no room for it."""

    def allocate(gib, shape):
        try:
            return torch.empty(((gib << 30) // (2 * math.prod(shape)), *shape), dtype=torch.bfloat16, device="cuda")
        except torch.OutOfMemoryError:
            pytest.skip(f"needs {gib} GiB of free device memory")

    yield allocate
    torch.cuda.empty_cache()


@pytest.fixture
def rng():
    return np.random.default_rng(20)
