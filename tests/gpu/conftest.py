"""Tests on a CUDA device, skipped by name where there is none."""

from __future__ import annotations

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
def rng():
    return np.random.default_rng(20)
