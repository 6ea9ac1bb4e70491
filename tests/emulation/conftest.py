"""CUDA kernels without a GPU: compiled for this CPU from the headers that ship, and run there.

The threads of some blocks at a time are fibers, which take turns in an order that is drawn from a seed. Whatever is
asynchronous happens as late as it may: copies and products when they are waited for, copies of boxes at some turn.
Until then their destinations hold NaN, with which shared memory begins too. What may not change while a product runs is
compared, and copies from outside the tensors are refused. There is no model of memory beyond that: a store is seen by
all threads at once.
`ptx.py` makes calls of the functions in `include/emulation` from the inline assembly.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from attnloom import jit
from attnloom.errors import CompileError, UnsupportedError

sys.path.insert(0, str(Path(__file__).parents[1]))

from emulation.bench import EmulationBench


@pytest.fixture(scope="session")
def compiler():
    try:
        jit.host_toolchain().probe()
    except (CompileError, UnsupportedError) as error:
        pytest.skip(f"no compiler for emulated kernels: {error}")


@pytest.fixture(scope="session")
def bench(compiler):
    return EmulationBench()


@pytest.fixture
def rng():
    return np.random.default_rng(20)
