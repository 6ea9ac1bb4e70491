"""A forked child must neither hang nor be silent."""

from __future__ import annotations

import subprocess
import sys
import textwrap

CHILD = """
import os, sys, warnings
import attnloom, torch

attn = attnloom.AttentionWrapper(
    attnloom.AttentionSpec(["causal"], 4, 2, 40, dtype="float32", tile=attnloom.Tile(16, 16)), num_threads=2
)
attn.plan(attnloom.storage_format("dense").build_index([50, 50], [50, 50], 100))
q, k = torch.randn(100, 4, 40), torch.randn(1, 100, 2, 40)
expected = attn.run(q, (k, k))
child = os.fork()
if child == 0:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same = all(torch.equal(attn.run(q, (k, k)), expected) for _ in range(3))
    said = [str(warning.message) for warning in caught if "forked" in str(warning.message)]
    os._exit(0 if same and len(said) == 1 and "spawn" in said[0] else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
again = torch.equal(attn.run(q, (k, k)), expected)
sys.exit(status if again else 2)
"""


def test_a_forked_child_runs_on_one_thread_and_says_so():
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(CHILD)],
        timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


LOCKED = """
import os, sys, threading
import attnloom, torch
from attnloom import kernel
from attnloom.jit import launcher

held, leave = threading.Event(), threading.Event()

def hold():
    with kernel._lock, launcher._lock:
        held.set()
        leave.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    free = all(lock.acquire(timeout=5) for lock in (kernel._lock, launcher._lock))
    os._exit(0 if free else 1)
leave.set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_forked_while_a_thread_opens_a_kernel_does_not_wait_for_it():
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(LOCKED)],
        timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
