"""What ptxas tells of each kernel: registers, memory and spills."""

from __future__ import annotations

import re

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'")
_STACK = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"Used (?P<registers>\d+) registers(?P<rest>.*)")
_SHARED = re.compile(r"(\d+) bytes smem")
_SERIALIZED = re.compile(r"wgmma.mma_async instructions are serialized .*in the function '(?P<name>[^']+)'")


def read_resources(log: str) -> list[dict]:
    """Each kernel that `ptxas -v` reports in `log`, as plain data.

    Returns:
        `{"kernel", "arch", "registers", "stack", "spill_stores", "spill_loads", "shared", "serialized"}`: the mangled
        name, and bytes but for the registers (a thread's). `shared` is what the kernel declares; what a launch adds is
        not in it. `serialized`: each `wgmma` waits for the one before it.
    """
    found: list[dict] = []
    serialized = {match["name"] for match in _SERIALIZED.finditer(log)}
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            found.append({"kernel": match["name"], "arch": match["arch"], "registers": 0, "stack": 0})
            found[-1].update(spill_stores=0, spill_loads=0, shared=0, serialized=match["name"] in serialized)
        elif not found:
            continue
        elif match := _STACK.search(line):
            found[-1].update(
                stack=int(match["stack"]), spill_stores=int(match["stores"]), spill_loads=int(match["loads"])
            )
        elif match := _USED.search(line):
            shared = _SHARED.search(match["rest"])
            found[-1].update(registers=int(match["registers"]), shared=int(shared[1]) if shared else 0)
    return found
