"""List or clear the compiled libraries: `attnloom cache list`, `attnloom cache clear`.

Neither torch nor a plugin is imported.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import attrs

from attnloom.jit import cache


def run(argv: Sequence[str]) -> int:
    """Run `attnloom cache ARGV`. Returns the exit status. Raises `ConfigError` for a folder that others own."""
    options = parser().parse_args(argv)
    act = listing if options.action == "list" else clearing
    print(act(options.json))
    return 0


def parser() -> argparse.ArgumentParser:
    """The arguments of `attnloom cache`."""
    top = argparse.ArgumentParser(prog="attnloom cache", description="The compiled libraries of this user.")
    actions = top.add_subparsers(dest="action", required=True, metavar="{list,clear}")
    told = {
        "list": "every library: what, how large, how long it took, by which compiler",
        "clear": "remove them all, with the logs of failed builds; running processes keep what they have loaded",
    }
    for name, text in told.items():
        actions.add_parser(name, help=text).add_argument("--json", action="store_true", help="as JSON")
    return top


def listing(as_json: bool = False) -> str:
    """The text of `attnloom cache list`."""
    folder, found = cache.root(), cache.entries()
    total = sum(entry.bytes for entry in found)
    if as_json:
        rows = [{**attrs.asdict(entry), "path": str(entry.path) if entry.path else None} for entry in found]
        return json.dumps({"folder": str(folder), "bytes": total, "entries": rows}, indent=1)
    if not found:
        return f"{folder}: empty"
    width = max(len(entry.title) for entry in found)
    lines = [f"{folder}: {len(found)} libraries, {_size(total)}"]
    for entry in found:
        if entry.problem:
            lines.append(
                f"  {entry.title:{width}}  {_size(entry.bytes):>9}  unusable: {entry.problem}; rebuilt when needed"
            )
            continue
        made_by = f"{entry.compiler}, {entry.isa}"
        owners = f"  [{', '.join(entry.owners)}]" if entry.owners else ""
        lines.append(
            f"  {entry.title:{width}}  {_size(entry.bytes):>9}  {entry.seconds:5.1f} s  {entry.created}  "
            f"{made_by}{owners}"
        )
    return "\n".join(lines)


def clearing(as_json: bool = False) -> str:
    """Clear the cache; the text of `attnloom cache clear`."""
    folder = cache.root()
    count, size = cache.clear()
    if as_json:
        return json.dumps({"folder": str(folder), "removed": count, "bytes": size})
    return f"{folder}: removed {count} libraries, {_size(size)}"


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
