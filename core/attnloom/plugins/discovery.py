"""Which plugins are installed, and which of them may be used: read from metadata alone, nothing is imported.

`scan` reads the metadata of every installed distribution once. `decide` sets aside what the configuration disables and
what was made for another attnloom. Both record and never raise for a plugin's fault, so that listing always works.
"""

from __future__ import annotations

import site
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from importlib_metadata import Distribution, EntryPoint, distributions

from attnloom.plugins.configuration import Config
from attnloom.plugins.metadata import Facts, facts_of, refused, requirement_name
from attnloom.plugins.naming import NAME, canonicalize_name, did_you_mean, plugin_key
from attnloom.plugins.record import KINDS, PluginRecord, State

GROUP = "attnloom"
PROVIDES = "attnloom.provides"


def scan(
    paths: Sequence[str] | None = None, *, core_version: str, reserved: Iterable[tuple[str, str]] = ()
) -> list[PluginRecord]:
    """The installed plugins, ordered by name and distribution.

    Args:
        paths: the folders to search, by default `search_paths()`.
        core_version: the version that plugins must accept.
        reserved: `(kind, name)` of what only the core may provide.
    """
    paths = search_paths() if paths is None else list(paths)
    records: dict[tuple[str, str], PluginRecord] = {}
    for distribution in distributions(path=paths):
        if names_our_group(distribution):
            for record in read_plugins(distribution, paths, core_version):
                check_reserved(record, reserved)
                records.setdefault((record.name, record.distribution), record)
    return [records[key] for key in sorted(records)]


def search_paths() -> list[str]:
    """`sys.path` without the current directory, from which nothing is loaded unless packages are installed in it."""
    try:
        here = Path.cwd().resolve()
    except OSError:
        return list(sys.path)
    installed = {Path(path).resolve() for path in (*site.getsitepackages(), site.getusersitepackages())}
    return [path for path in sys.path if path and (Path(path).resolve() != here or here in installed)]


def names_our_group(distribution: Distribution) -> bool:
    """Whether the entry points could have one of our groups; the text is looked at before anything is parsed."""
    try:
        return "[attnloom" in (distribution.read_text("entry_points.txt") or "").replace(" ", "")
    except (OSError, ValueError):
        return False


def read_plugins(distribution: Distribution, paths: Sequence[str], core_version: str) -> list[PluginRecord]:
    """The plugins that one distribution brings, or the one that hides it. Metadata that makes no sense gives failed
    records."""
    try:
        facts = facts_of(distribution)
        first = first_of_its_name(facts.name, distribution, paths)
        if first is not distribution:
            distribution, facts = first, facts_of(first)
        entry_points = list(distribution.entry_points)
    except Exception as error:
        location = str(distribution.locate_file(""))
        name = Path(str(getattr(distribution, "_path", None) or location)).name
        record = PluginRecord(name=name, distribution=name, version="?", module="", location=location)
        record.set_aside(State.FAILED, f"its metadata cannot be read: {describe(error)}", error)
        return [record]
    plugins = [point for point in entry_points if point.group == GROUP]
    source = {
        "distribution": canonicalize_name(facts.name),
        "version": facts.version,
        "location": str(distribution.locate_file("")),
    }
    records = [PluginRecord(name=plugin_key(point.name), module=point.value.strip(), **source) for point in plugins]
    for record, point in zip(records, plugins, strict=True):
        if not NAME.match(record.name):
            record.set_aside(State.FAILED, f"its name {point.name!r} does not match {NAME.pattern!r}")
        elif not is_module(record.module):
            record.set_aside(State.FAILED, f"its entry point {point.value!r} is no module path")
        check_requirement(record, facts, core_version)
    for point in entry_points:
        if point.group == PROVIDES:
            assign(point, records)
    return records


def first_of_its_name(name: str, distribution: Distribution, paths: Sequence[str]) -> Distribution:
    """The distribution that Python would import: the first of that name on the path."""
    first = next(iter(distributions(name=name, path=list(paths))), distribution)
    return distribution if getattr(first, "_path", None) == getattr(distribution, "_path", "") else first


def is_module(value: str) -> bool:
    """Whether an entry point's value names a module, without attribute or extras."""
    return bool(value) and all(part.isidentifier() for part in value.split("."))


def assign(point: EntryPoint, records: list[PluginRecord]) -> None:
    """Add one contribution to the plugin of its module, or record why it has none."""
    kind, _, name = point.name.partition(".")
    kind, name = plugin_key(kind), plugin_key(name)
    owners = [record for record in records if record.module == point.value.strip()]
    for record in owners or records:
        if not owners:
            reason = f"it provides {point.name!r} from {point.value!r}, which is no plugin of its distribution"
            record.set_aside(State.FAILED, reason)
        elif kind not in KINDS:
            hint = f"{did_you_mean(kind, KINDS)} (known: {', '.join(KINDS)})"
            record.set_aside(State.FAILED, f"it provides {point.name!r}: unknown kind {kind!r}{hint}")
        elif not NAME.match(name):
            record.set_aside(State.FAILED, f"it provides {point.name!r}, whose name does not match {NAME.pattern!r}")
        else:
            record.provides = tuple(sorted({*record.provides, (kind, name)}))


def check_requirement(record: PluginRecord, facts: Facts, core_version: str) -> None:
    """Set aside a plugin whose distribution does not accept this version of attnloom."""
    for text in facts.requires:
        if requirement_name(text) != "attnloom":
            continue
        try:
            wanted = refused(text, core_version)
        except ValueError as error:
            record.set_aside(State.FAILED, f"its requirement {text!r} cannot be read: {describe(error)}", error)
            continue
        if wanted is not None:
            record.set_aside(State.INCOMPATIBLE, f"it needs attnloom{wanted}, and this is attnloom {core_version}")


def check_reserved(record: PluginRecord, reserved: Iterable[tuple[str, str]]) -> None:
    """Set aside a plugin that claims a name of the core's."""
    if taken := sorted(set(record.provides) & set(reserved)):
        names = ", ".join(f"{kind} {name!r}" for kind, name in taken)
        record.set_aside(State.FAILED, f"it provides {names}, a name reserved for the core")


def decide(records: Iterable[PluginRecord], config: Config) -> list[str]:
    """Set aside what `config` disables and mark what it names.

    Returns:
        warnings: what the configuration disables and nothing provides.
    """
    records = list(records)
    wanted = (*config.enable, *(plugin_key(requirement_name(text)) for text in config.required))
    for record in records:
        wants = any(map(record.is_called, wanted))
        record.named = wants or any(map(record.is_called, config.settings))
        if disabled_by := next(filter(record.is_called, config.disable), None):
            record.set_aside(State.DISABLED, f"disabled by the configuration ({disabled_by!r} in {config.source})")
        elif not config.autoload and not wants:
            record.set_aside(State.DISABLED, f"not enabled, and plugins load only by name ({config.source})")
    absent = [name for name in config.disable if not any(record.is_called(name) for record in records)]
    hints = {name: did_you_mean(name, known_names(records)) for name in absent}
    return [f"{name!r} is disabled, and no such plugin is installed{hints[name]} ({config.source})" for name in absent]


def known_names(records: Iterable[PluginRecord]) -> set[str]:
    """Every name by which a plugin can be called."""
    return {name for record in records for name in (record.name, plugin_key(record.distribution))}


def unmet(records: Iterable[PluginRecord], config: Config) -> list[tuple[str, PluginRecord | None]]:
    """What the configuration names that cannot be had: a sentence each, and the plugin at fault if there is one."""
    records = list(records)
    problems: list[tuple[str, PluginRecord | None]] = []
    for name in config.enable:
        found = [record for record in records if record.is_called(name)]
        if not found:
            hint = did_you_mean(name, known_names(records))
            problems.append((f"plugin {name!r} is enabled, and no such plugin is installed{hint}", None))
        problems += [(f"{name!r} is enabled, but {r.status}", r) for r in found if not r.offers]
    for text in config.required:
        problems += unmet_requirement(text, records)
    for name in config.settings:
        if not any(record.is_called(name) for record in records):
            hint = did_you_mean(name, known_names(records))
            problems.append((f"[plugin.{name}] has settings, and no such plugin is installed{hint}", None))
    for key, choice in config.prefer.items():
        problems += unmet_preference(key, choice, records)
    return [(f"{sentence} ({config.source})", record) for sentence, record in problems]


def unmet_preference(key: str, choice: str, records: list[PluginRecord]) -> list[tuple[str, PluginRecord | None]]:
    """Why nothing called `choice` provides what `[prefer]` wants of it. Which commands a plugin adds only its import
    tells, and a tile heuristic has no plugin in its preference."""
    if key == "tile":
        return []
    found = [record for record in records if record.is_called(choice)]
    if not found:
        hint = did_you_mean(choice, known_names(records))
        return [(f"{key!r} is to come from {choice!r}, and no such plugin is installed{hint}", None)]
    kind, _, name = key.partition(":")
    if kind == "command" or any((kind, name) in record.provides for record in found):
        return []
    record = found[0]
    offers = ", ".join(f"{its_kind}:{its_name}" for its_kind, its_name in record.provides) or "nothing"
    told = f"plugin {record.label} provides {offers}" if record.offers else record.status
    others = [r.label for r in records if r.offers and (kind, name) in r.provides]
    hint = f"; {' and '.join(others)} would" if others else ""
    sentence = f"{key!r} is to come from {choice!r}, which does not provide it{hint} ({told})"
    return [(sentence, None if record.offers else record)]


def unmet_requirement(text: str, records: list[PluginRecord]) -> list[tuple[str, PluginRecord | None]]:
    """Why a PEP 508 requirement on a plugin's distribution is not met; nothing if it is, or does not apply here."""
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return []
    name = canonicalize_name(requirement.name)
    found = [record for record in records if record.distribution == name]
    if not found:
        hint = did_you_mean(name, {record.distribution for record in records})
        return [(f"{text!r} is required, and no such plugin distribution is installed{hint}", None)]
    problems: list[tuple[str, PluginRecord | None]] = []
    for record in found:
        if not requirement.specifier.contains(record.version, prereleases=True):
            problems.append((f"{text!r} is required, and {record.version} is installed", record))
        elif not record.offers:
            problems.append((f"{text!r} is required, but {record.status}", record))
    return problems


def describe(error: BaseException) -> str:
    """An exception in one line: its type and what it says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
