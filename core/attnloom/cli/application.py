"""The typer application: the subcommand that is asked for, or for `--help` all of them, those of plugins included."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from attnloom.cli import MODULES, QUICK
from attnloom.errors import AttnloomError, PluginError, UnknownNameError
from attnloom.plugins.naming import did_you_mean, normalize_name
from attnloom.plugins.pluginset import PluginSet


def run(arguments: list[str]) -> int:
    """Build the application for `arguments`, run it and return the exit status.

    Raises:
        UnknownNameError: there is no such subcommand.
    """
    app = build(arguments[0])
    try:
        status = app(arguments, prog_name="attnloom", standalone_mode=False)
    except Exception as error:
        # click's own errors and aborts know how to show themselves and which status they mean.
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            return error.exit_code
        if type(error).__name__ == "Abort":
            return 130
        raise
    return status if isinstance(status, int) else 0


def build(command: str) -> typer.Typer:
    """An application with the subcommand `command`, or with every one if it is an option such as `--help`."""
    app = typer.Typer(
        help="An attention engine for LLM serving, built as a plugin framework.",
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    if command in MODULES:
        importlib.import_module(MODULES[command]).register(app)
    elif command.startswith("-"):
        add_all(app)
    else:
        add_plugin_command(app, command)
    return app


def _options(version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False) -> None:
    """An attention engine for LLM serving, built as a plugin framework."""


def add_all(app: typer.Typer) -> None:
    """Every subcommand, for `--help`. One that cannot be imported stays in the list and says why."""
    for name, module in QUICK.items():
        add_stub(app, name, importlib.import_module(module).__doc__.splitlines()[0])
    for name, module in MODULES.items():
        try:
            importlib.import_module(module).register(app)
        except Exception as error:
            add_stub(app, name, f"Not available: {type(error).__name__}: {error}")
    try:
        offered = PluginSet.default().commands()
    except AttnloomError as error:
        typer.echo(f"attnloom: the commands of plugins are left out: {error}", err=True)
        return
    for name, offers in offered.items():
        if name not in (*QUICK, *MODULES):
            labels = " and ".join(label for label, _ in offers)
            if len(offers) == 1:
                add(app, name, offers[0][1], f"From {labels}.")
            else:
                add_stub(app, name, f"Offered by {labels}: choose one in [prefer].")


def add_stub(app: typer.Typer, name: str, text: str) -> None:
    """A line in the help."""
    app.command(name, help=text)(lambda: None)


def add_plugin_command(app: typer.Typer, command: str) -> None:
    """The subcommand of a plugin. Raises `UnknownNameError`, or `PluginError` where two plugins offer it."""
    offered = PluginSet.default().commands()
    name = normalize_name(command)
    if name not in offered:
        known = [*QUICK, *MODULES, *offered]
        raise UnknownNameError(f"no command {command!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
    offers = offered[name]
    if len(offers) > 1:
        labels = " and ".join(label for label, _ in offers)
        raise PluginError(f'command {name!r} is offered by {labels}; choose one in [prefer]: "command:{name}" = "..."')
    add(app, command, offers[0][1], f"From {offers[0][0]}.")


def add(app: typer.Typer, name: str, command: Any, origin: str) -> None:
    """Add a plugin's function or `typer.Typer` under `name`."""
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name, help=f"{(command.__doc__ or '').strip()} {origin}".strip())(command)
