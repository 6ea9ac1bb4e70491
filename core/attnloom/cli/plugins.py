"""List the installed plugins, show, write or check one: `attnloom plugins list|show|new|check`.

`list` and `show` import no plugin: all is read from metadata and the configuration.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

from attnloom.cli import plugins_check, plugins_new
from attnloom.cli.table import table
from attnloom.errors import ConfigError, UnknownNameError
from attnloom.plugins.configuration import Config
from attnloom.plugins.naming import did_you_mean, plugin_key
from attnloom.plugins.pluginset import PluginSet
from attnloom.plugins.record import PluginRecord

STYLES = {"found": "green", "loaded": "green", "disabled": "faint", "incompatible": "yellow", "failed": "red"}


def run(argv: Sequence[str]) -> int:
    """Run `attnloom plugins ARGV`. Returns the exit status: 1 if the configuration is wrong or a plugin is unknown."""
    options = parser().parse_args(argv)
    if options.action in ("new", "check"):
        return importlib.import_module(f"attnloom.cli.plugins_{options.action}").run(options)
    plugin_set, problem = resolve()
    if problem:
        print(f"attnloom: error: {problem}\nattnloom: what follows is without any configuration", file=sys.stderr)
    if options.action == "list":
        records = plugin_set.records()
        show_list(plugin_set, records if options.all else records[1:], options.json)
    else:
        show_one(plugin_set, options.name, options.json)
    return 1 if problem else 0


def parser() -> argparse.ArgumentParser:
    """The arguments of `attnloom plugins`."""
    top = argparse.ArgumentParser(prog="attnloom plugins", description="The installed plugins, and new ones.")
    actions = top.add_subparsers(dest="action", required=True, metavar="{list,show,new,check}")
    listing = actions.add_parser("list", help="every plugin, its state and what it provides")
    listing.add_argument("--all", action="store_true", help="the core's own contributions too")
    listing.add_argument("--json", action="store_true", help="as JSON")
    showing = actions.add_parser("show", help="all that is known of one plugin")
    showing.add_argument("name", help="a plugin, its distribution, or something that it provides")
    showing.add_argument("--json", action="store_true", help="as JSON")
    plugins_new.add_parser(actions)
    plugins_check.add_parser(actions)
    return top


def resolve() -> tuple[PluginSet, ConfigError | None]:
    """The plugins under the resolved configuration; under none, and the reason, where that one is wrong."""
    try:
        return PluginSet.from_config(Config.resolve()), None
    except ConfigError as error:
        return PluginSet.from_config(Config(source="no configuration")), error


def show_list(plugin_set: PluginSet, records: Sequence[PluginRecord], as_json: bool) -> None:
    """Print a table, or a JSON array."""
    if as_json:
        print(json.dumps([record.as_dict() for record in records], indent=2))
        return
    if not records:
        print(
            'No plugin is installed. Install one, for example: pip install attnloom-rope (or ".[all]" in a checkout).'
        )
        return
    print_table(records)
    for (kind, name), offering in plugin_set.clashes().items():
        labels = " and ".join(record.label for record in offering)
        print(f'clash: {kind} {name!r} is offered by {labels}; choose in [prefer]: "{kind}:{name}" = "..."')


def print_table(records: Sequence[PluginRecord]) -> None:
    """The plugins as a table; a reason has a line of its own."""
    rows, notes = [], []
    for record in records:
        provides = ", ".join(f"{kind}.{name}" for kind, name in record.provides)
        rows.append((record.name, f"{record.distribution} {record.version}", str(record.state), provides))
        notes.append(record.reason)
    titles = ("plugin", "distribution", "state", "provides")
    print(table(titles, rows, notes, styles=STYLES, styled_column=2))


def show_one(plugin_set: PluginSet, name: str, as_json: bool) -> None:
    """Print what is known of the plugins that `name` means. Raises `UnknownNameError`."""
    key = plugin_key(name)
    records = [record for record in plugin_set.records() if means(key, record)]
    if not records:
        known = {n for r in plugin_set.records() for n in (r.name, r.distribution, *(item for _, item in r.provides))}
        raise UnknownNameError(f"no plugin {name!r}{did_you_mean(key, known)} (`attnloom plugins list --all` has them)")
    described = [{**record.as_dict(), "settings": plugin_set.given_settings(record)} for record in records]
    if as_json:
        print(json.dumps(described, indent=2))
        return
    print("\n\n".join(map(described_in_lines, described)))


def described_in_lines(fields: dict) -> str:
    """What is known of one plugin, a line each."""
    lines = []
    for field, value in fields.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} = {item!r}" for key, item in value.items()) or "none configured"
        lines.append(f"{field:<13} {', '.join(value) if isinstance(value, list) else value}".rstrip())
    return "\n".join(lines)


def means(key: str, record: PluginRecord) -> bool:
    """Whether `key` is the plugin's name, its distribution's, or a contribution's (`rope`, `variant.rope`)."""
    provides = {spelling for kind, name in record.provides for spelling in (name, f"{kind}_{name}")}
    return record.is_called(key) or key in provides
