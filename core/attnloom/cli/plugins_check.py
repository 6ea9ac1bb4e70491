"""`attnloom plugins check NAME|PATH`: hold a plugin to the conformance kit and print a report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from attnloom.errors import AttnloomError, PluginError, UnknownNameError
from attnloom.plugins.configuration import Config
from attnloom.plugins.naming import did_you_mean, plugin_key
from attnloom.plugins.pluginset import PluginSet
from attnloom.plugins.record import PluginRecord

SUITES = {
    "variant": "VariantSuite",
    "storage_format": "StorageFormatSuite",
    "tile_heuristic": "TileHeuristicSuite",
    "plugin": "HooksSuite",
}
SIGNS = {"passed": ("✓", "green"), "skipped": ("-", "dim"), "failed": ("✗", "red"), "error": ("✗", "red")}


def add_parser(actions) -> None:
    """Add the subcommand to the parser of `attnloom plugins`."""
    parser = actions.add_parser("check", help="hold a plugin to the conformance kit, and report")
    parser.add_argument("target", help="an installed plugin, distribution or contribution, or a project's folder")
    only = "run this check only, or those with this in their names (repeatable)"
    parser.add_argument("--only", action="append", default=[], metavar="CHECK", help=only)
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Check the plugins that `options.target` means. Returns the exit status: 1 if a check failed.

    Raises:
        UnknownNameError, PluginError: there is no such plugin, or the folder holds none.
    """
    import tempfile

    report = JsonReport() if options.json else RichReport()
    with tempfile.TemporaryDirectory() as scratch:
        plugins, records, project = find(options.target, Path(scratch))
        offers = [(r, kind, name) for r in records for kind, name in r.provides or (("plugin", r.name),)]
        only = wanted(options.only, {kind for _, kind, _ in offers})
        for record, kind, name in offers:
            report.begin(record, kind, name)
            for outcome in outcomes(plugins, kind, name, project, only):
                report.add(outcome)
    return report.end()


def wanted(only: list[str], kinds: set[str]) -> tuple[str, ...]:
    """The names of checks as suites have them: those that are `only`, else those with it in their names.

    Raises:
        UnknownNameError: no suite of `kinds` has one.
    """
    if not only:
        return ()
    import attnloom.testing
    from attnloom.testing.runner import checks_of

    suites = [getattr(attnloom.testing, SUITES[kind]) for kind in sorted(kinds)]
    known = list(dict.fromkeys(name.removeprefix("test_") for suite in suites for name in checks_of(suite)))
    names = []
    for name in (name.replace(" ", "_").replace("-", "_") for name in only):
        found = [name] if name in known else [one for one in known if name in one]
        if not found:
            raise UnknownNameError(f"no check {name!r}{did_you_mean(name, known)} (there are: {', '.join(known)})")
        names += found
    return tuple(names)


@frozen
class Project:
    """A folder with a plugin's sources, and the wheel that was built of them."""

    folder: Path
    wheel: Path


def find(target: str, scratch: Path) -> tuple[PluginSet, list[PluginRecord], Project | None]:
    """The plugins to check, the set that they are looked up in, and their project if it is a folder that was named."""
    folder = Path(target)
    if "/" in target or (folder / "pyproject.toml").is_file():
        wheel, site = unpack(folder, scratch)
        sys.path.insert(0, str(site))
        plugins = PluginSet.from_config(Config(source="no configuration"))
        records = [record for record in plugins.records() if Path(record.location) == site]
        if not records:
            raise PluginError(f"{folder} declares no plugin: its pyproject.toml needs [project.entry-points.attnloom]")
        return plugins, records, Project(folder, wheel)
    plugins = PluginSet.from_config(Config(source="no configuration"))
    key = plugin_key(target)
    records = [r for r in plugins.records() if r.is_called(key) or any(key == name for _, name in r.provides)]
    if not records:
        known = {name for r in plugins.records() for name in (r.name, *(item for _, item in r.provides))}
        hint = did_you_mean(key, known)
        raise UnknownNameError(f"no plugin {target!r} is installed{hint}; for a folder, write its path: ./{target}")
    return plugins, records, None


def unpack(folder: Path, scratch: Path) -> tuple[Path, Path]:
    """Build the project's wheel and lay out what installing it would bring. Raises `PluginError`."""
    import zipfile
    from unittest import SkipTest

    from attnloom.testing.packages import build_wheel

    try:
        wheel = build_wheel(folder.resolve(), scratch / "wheel")
    except SkipTest as reason:
        raise PluginError(f"{folder} cannot be built: {reason}") from reason
    site = (scratch / "site").resolve()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return wheel, site


def outcomes(plugins, kind: str, name: str, project: Project | None, only) -> Iterator:
    """The outcomes of a contribution's checks; of loading alone, where that fails."""
    import attnloom.testing

    if kind != "plugin":
        try:
            getattr(plugins, kind)(name)
        except AttnloomError as error:
            yield attnloom.testing.Outcome("loads", "failed", "The plugin can be loaded.", str(error), 0.0)
            return
    base = getattr(attnloom.testing, SUITES[kind])
    fields = {kind: name, "plugins": plugins}
    if project is not None:
        from attnloom.testing.author import author_suites, suite_for

        suites, problems = author_suites(project.folder)
        for problem in problems:
            yield attnloom.testing.Outcome("suites of the project", "skipped", "", problem, 0.0)
        base, fields["wheel"] = suite_for(suites, base, name), project.wheel
    yield from attnloom.testing.run_suite(type("Check", (base,), fields), only)


class RichReport:
    """Prints each check as it ends."""

    def __init__(self):
        from rich.console import Console

        self.console = Console(highlight=False, soft_wrap=True)
        self.counts = dict.fromkeys(SIGNS, 0)

    def begin(self, record: PluginRecord, kind: str, name: str) -> None:
        """A heading."""
        from rich.markup import escape

        self.console.print(f"[bold]{kind.replace('_', ' ')} {escape(name)}[/bold] of {escape(record.label)}")

    def add(self, outcome) -> None:
        """A line, and below it why it did not pass."""
        from rich.markup import escape

        self.counts[outcome.status] += 1
        sign, style = SIGNS[outcome.status]
        words = outcome.check.replace("_", " ")
        self.console.print(f"  [{style}]{sign}[/{style}] {words}  [dim]{outcome.seconds:.1f} s[/dim]")
        if outcome.message:
            for line in outcome.message.splitlines():
                self.console.print(f"      {escape(line)}", style="dim" if outcome.status == "skipped" else "")

    def end(self) -> int:
        """The sum. Returns the exit status."""
        failed = self.counts["failed"] + self.counts["error"]
        told = f"{self.counts['passed']} passed, {self.counts['skipped']} skipped, {failed} failed"
        self.console.print(told, style="red" if failed else "green")
        return 1 if failed else 0


class JsonReport:
    """Gathers everything and prints one JSON object."""

    def __init__(self):
        self.checked: list[dict] = []

    def begin(self, record: PluginRecord, kind: str, name: str) -> None:
        """Another contribution."""
        about = {"kind": kind, "name": name, "distribution": record.distribution, "version": record.version}
        self.checked.append({**about, "checks": []})

    def add(self, outcome) -> None:
        """A check of the last contribution."""
        from attrs import asdict

        self.checked[-1]["checks"].append(asdict(outcome))

    def end(self) -> int:
        """Print. Returns the exit status."""
        failed = any(check["status"] in ("failed", "error") for one in self.checked for check in one["checks"])
        print(json.dumps({"ok": not failed, "checked": self.checked}, indent=2))
        return 1 if failed else 0
