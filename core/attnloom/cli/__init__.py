"""The `attnloom` command.

`plugins`, `doctor` and `cache` import no plugin, no torch and no typer, so they work when something else is
broken. Every other subcommand lives in a module of its own, of which only the one that is asked for is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

QUICK = {"plugins": "attnloom.cli.plugins", "doctor": "attnloom.cli.doctor", "cache": "attnloom.cli.cache"}
"""Subcommands with `run(argv) -> exit status`, and a docstring whose first line is the help."""

MODULES = {
    "generate": "attnloom.cli.generate",
    "explain": "attnloom.cli.explain",
    "compile": "attnloom.cli.compile",
    "tune": "attnloom.cli.tune",
    "plot": "attnloom.cli.plot",
}
"""Subcommands with `register(app)`, which adds them to a `typer.Typer`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (by default the process's arguments). Returns the exit status.

    An `AttnloomError` is printed in one line; with `ATTNLOOM_TRACEBACK=1` its traceback is shown.
    """
    import os

    from attnloom.errors import AttnloomError

    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return dispatch(arguments)
        finally:
            print(end="", flush=True)  # while a reader that has gone can still be told from a failure
    except AttnloomError as error:
        if os.environ.get("ATTNLOOM_TRACEBACK"):
            raise
        print(f"attnloom: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output has gone; a second failure at interpreter exit would be noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def dispatch(arguments: list[str]) -> int:
    """Hand the arguments to the subcommand that they name."""
    import importlib

    command = arguments[0] if arguments else "--help"
    if command in ("--version", "-V"):
        from attnloom import __version__

        print(f"attnloom {__version__}")
        return 0
    if command in QUICK:
        return importlib.import_module(QUICK[command]).run(arguments[1:])
    from attnloom.cli import application

    return application.run(arguments or ["--help"])
