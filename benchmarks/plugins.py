"""What listing plugins costs, with thirty installed: `python benchmarks/plugins.py [--plugins 30] [--json FILE]`.

Each command runs in a process of its own, the interpreter's start included. CPU seconds say more than the wall clock on
a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = (["plugins", "list"], ["plugins", "list", "--json"], ["plugins", "show", "made_up_3"], ["doctor"])


def install(folder: Path, count: int) -> None:
    """`count` distributions as pip leaves them, each with a plugin that must not be imported."""
    for number in range(count):
        name = f"made_up_{number}"
        package = folder / name
        package.mkdir()
        (package / "__init__.py").write_text("raise SystemExit('imported')\n")
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        described = "What it is, at some length.\n" * 200
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: attnloom<1,>=0.1\n"
        (info / "METADATA").write_text(f"{head}Requires-Dist: numpy>=1.26\n\n{described}")
        points = f"[attnloom]\n{name} = {name}.plugin\n\n[attnloom.provides]\nvariant.{name} = {name}.plugin\n"
        (info / "entry_points.txt").write_text(points)


def measured(command: list[str], environment: dict[str, str], repeats: int) -> dict[str, float]:
    """The smallest wall and CPU seconds of `repeats` runs."""
    walls, cpus = [], []
    for _ in range(repeats):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
        walls.append(time.perf_counter() - begin)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if "imported" in done.stdout + done.stderr:
            sys.exit(f"{command} imported a plugin:\n{done.stdout}{done.stderr}")
    return {"wall s": min(walls), "cpu s": min(cpus)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugins", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), options.plugins)
        environment = {**os.environ, "PYTHONPATH": folder, "ATTNLOOM_CONFIG": ""}
        figures = {"python alone": measured(["-c", "pass"], environment, options.repeats)}
        for command in COMMANDS:
            name = f"attnloom {' '.join(command)}"
            figures[name] = measured(["-m", "attnloom", *command], environment, options.repeats)
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {options.plugins} plugins")
    for name, row in figures.items():
        print(f"{name:36} {row['wall s']:7.3f} s wall {row['cpu s']:7.3f} s CPU")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
