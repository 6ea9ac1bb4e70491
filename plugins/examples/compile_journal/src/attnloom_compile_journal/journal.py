"""The journal: a line of JSON for each compiled kernel, in the user's state folder or where ATTNLOOM_JOURNAL says."""

import json
import os
import time
from pathlib import Path

import platformdirs


def path() -> Path:
    """Where the journal lies."""
    named = os.environ.get("ATTNLOOM_JOURNAL")
    return Path(named) if named else platformdirs.user_state_path("attnloom") / "journal.jsonl"


def add(report) -> None:
    """Write down one compile (`attnloom.jit.CompileReport`)."""
    entry = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "name": report.name,
        "kind": report.kind,
        "seconds": round(report.seconds, 2),
        "compiler": report.compiler,
        "plugins": list(report.owners),
    }
    path().parent.mkdir(parents=True, exist_ok=True)
    with open(path(), "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def entries() -> list[dict]:
    """The journal, oldest first."""
    try:
        text = path().read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]


def show(last: int = 20) -> None:
    """Show the kernels that were compiled last."""
    found = entries()
    for entry in found[-last:] if last > 0 else []:
        plugins = ", ".join(entry["plugins"]) or "no plugin"
        print(f"{entry['time']}  {entry['seconds']:6.2f} s  {entry['name']}  ({plugins})")
    print(f"{len(found)} compile(s) in {path()}")
