"""`attnloom plugins new NAME --kind KIND`: write a complete plugin package."""

from __future__ import annotations

import argparse
from pathlib import Path

from attnloom.plugins.record import KINDS

KIND_NAMES = [kind.replace("_", "-") for kind in KINDS]


def add_parser(actions) -> None:
    """Add the subcommand to the parser of `attnloom plugins`."""
    parser = actions.add_parser("new", help="write a complete plugin package that passes its own tests")
    parser.add_argument("name", help="what users will name it: letters, digits, - and _")
    parser.add_argument(
        "--kind",
        required=True,
        type=lambda kind: kind.replace("_", "-"),
        choices=KIND_NAMES,
        help="what the plugin provides",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path("."), help="where the package's folder is made (default: here)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the package and say what to do next. Raises `PluginError`; then nothing is written."""
    from attnloom import scaffold

    folder = scaffold.write_plugin(options.name, options.kind, options.dir)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"  {folder.name}/{path.relative_to(folder).as_posix()}")
    print(f'Next: cd {folder} && pip install -e ".[test]" && pytest; README.md there says what to write where.')
    return 0
