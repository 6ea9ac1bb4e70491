"""`attnloom cache`: what is compiled and kept, and how to be rid of it. Imports neither torch nor a plugin."""

from __future__ import annotations

import json

from attnloom.jit import cache


def register(app) -> None:
    """Add the command `cache` with its subcommands to a `typer.Typer`."""
    import typer

    group = typer.Typer(help="The compiled libraries: list or clear them.", no_args_is_help=True)

    @group.command("list")
    def list_(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
        """Every compiled library: what, how large, how long it took, by which compiler."""
        print(listing(as_json))

    @group.command("clear")
    def clear_(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
        """Remove them all, with the logs of failed builds. Running processes keep what they have loaded."""
        print(clearing(as_json))

    app.add_typer(group, name="cache")


def listing(as_json: bool = False) -> str:
    """The text of `attnloom cache list`."""
    folder, found = cache.root(), cache.entries()
    total = sum(entry.bytes for entry in found)
    if as_json:
        rows = [{**_fields(entry), "path": str(entry.path) if entry.path else None} for entry in found]
        return json.dumps({"folder": str(folder), "bytes": total, "entries": rows}, indent=1)
    if not found:
        return f"{folder}: empty"
    width = max(len(entry.name) for entry in found)
    lines = [f"{folder}: {len(found)} libraries, {_size(total)}"]
    for entry in found:
        if entry.problem:
            lines.append(
                f"  {entry.name:{width}}  {_size(entry.bytes):>9}  unusable: {entry.problem}; rebuilt when needed"
            )
            continue
        made_by = f"{entry.compiler}, {entry.isa}"
        owners = f"  [{', '.join(entry.owners)}]" if entry.owners else ""
        lines.append(
            f"  {entry.name:{width}}  {_size(entry.bytes):>9}  {entry.seconds:5.1f} s  {entry.created}  "
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


def _fields(entry: cache.Entry) -> dict:
    import attrs

    return attrs.asdict(entry)


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
