"""The journal: a line of JSON for each compiled kernel."""

import json
import time
from pathlib import Path

import platformdirs


class Journal:
    """The journal in the file `path`; empty: in the user's state folder."""

    def __init__(self, path: str = ""):
        self.path = Path(path).expanduser() if path else platformdirs.user_state_path("attnloom") / "journal.jsonl"

    def add(self, report) -> None:
        """Write down one compile (`attnloom.jit.CompileReport`)."""
        entry = {
            "time": time.strftime("%Y-%m-%d %H:%M:%S"),
            "name": report.name,
            "kind": report.kind,
            "seconds": round(report.seconds, 2),
            "compiler": report.compiler,
            "plugins": list(report.owners),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def entries(self) -> list[dict]:
        """All of it, oldest first."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def show(self, last: int) -> None:
        """Print the latest entries."""
        found = self.entries()
        for entry in found[-last:] if last > 0 else []:
            plugins = ", ".join(entry["plugins"]) or "no plugin"
            print(f"{entry['time']}  {entry['seconds']:6.2f} s  {entry['name']}  ({plugins})")
        print(f"{len(found)} compile(s) in {self.path}")
