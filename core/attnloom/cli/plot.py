"""`attnloom plot`: pictures of indices, plans and masks, written to files."""

from __future__ import annotations

import importlib

import typer

PICTURES = ("index", "mask", "plan")
"""The subcommands; each lives in a module `plot_<name>` with `register(group)`."""


def register(app: typer.Typer) -> None:
    """Add the subcommands to the `attnloom` command."""
    group = typer.Typer(help="Draw an index, a mask or a plan to a file (needs matplotlib: the extra `plot`).")
    for name in PICTURES:
        importlib.import_module(f"attnloom.cli.plot_{name}").register(group)
    app.add_typer(group, name="plot")
