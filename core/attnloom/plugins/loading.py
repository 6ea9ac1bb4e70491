"""Import one plugin and collect what it provides. Whatever is wrong with it raises `BadPluginError`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import pluggy
from attrs import evolve, frozen

from attnloom.errors import ConfigError
from attnloom.hookspecs import HOOKS, REMOVED, AttnloomSpecs
from attnloom.index import StorageFormat
from attnloom.plugins import blame
from attnloom.plugins.discovery import describe
from attnloom.plugins.naming import NAME, did_you_mean
from attnloom.plugins.origin import stray_origin
from attnloom.plugins.record import PluginRecord, State
from attnloom.settings import Setting, Settings, settle
from attnloom.tile import TileHeuristic
from attnloom.variant import ABI, Variant

Contribution = Variant | StorageFormat | TileHeuristic

COLLECTED = {
    "variant": ("attnloom_variants", Variant),
    "storage_format": ("attnloom_storage_formats", StorageFormat),
    "tile_heuristic": ("attnloom_tile_heuristics", TileHeuristic),
}
"""Each kind of contribution with the hook that returns it and its type."""


class BadPluginError(Exception):
    """Why a plugin cannot be used: the state it is left in, and a sentence."""

    def __init__(self, reason: str, state: State = State.FAILED):
        super().__init__(reason)
        self.state = state


@frozen
class Loaded:
    """What a plugin gave when it was loaded: its contributions by `(kind, name)`, and its settings in force."""

    contributions: dict[tuple[str, str], Contribution]
    settings: Settings


def new_manager(specs: type = AttnloomSpecs) -> pluggy.PluginManager:
    """A manager that knows the hooks and no plugin."""
    manager = pluggy.PluginManager("attnloom")
    manager.add_hookspecs(specs)
    return manager


def load(
    record: PluginRecord, manager: pluggy.PluginManager, given: Mapping[str, Any] | None = None, where: str = ""
) -> Loaded:
    """Import the plugin, register its hooks and collect what it provides.

    Args:
        given: the settings that the configuration has for it; `where` they stand, for messages.

    Raises:
        BadPluginError: from the cause where there is one. The manager is then as it was.
    """
    if (stray := stray_origin(record)) is not None:
        raise BadPluginError(
            f"{record.module} would be imported from the current directory {stray}, and the plugin is installed in "
            f"{record.location}: start Python somewhere else"
        )
    try:
        module = importlib.import_module(record.module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BadPluginError(blame.of_import(error, record.module)) from error
    check_hooks(module, manager)
    try:
        manager.register(module, record.key)
    except (ValueError, pluggy.PluginValidationError) as error:
        raise BadPluginError(f"its hooks are wrong: {describe(error)}") from error
    try:
        settings = settings_of(module, manager, given or {}, where)
        return Loaded(collect(record, module, manager, settings), settings)
    except BadPluginError:
        manager.unregister(name=record.key)
        raise


def settings_of(module: ModuleType, manager: pluggy.PluginManager, given: Mapping[str, Any], where: str) -> Settings:
    """The settings that the plugin declares, with the values that the configuration gives."""
    declared = results_of("attnloom_settings", module, manager)
    for item in declared:
        if not isinstance(item, Setting):
            raise BadPluginError(f"its attnloom_settings returned {item!r}, which is no Setting")
    if twice := sorted({one.name for one in declared if sum(other.name == one.name for other in declared) > 1}):
        raise BadPluginError(f"its attnloom_settings returned {', '.join(map(repr, twice))} twice")
    try:
        return settle(declared, given, where)
    except ConfigError as error:
        raise BadPluginError(f"its settings are wrong: {error}") from error


def check_hooks(module: ModuleType, manager: pluggy.PluginManager) -> None:
    """Refuse hooks that do not exist and wrappers, which could change what other plugins return."""
    for name in dir(module):
        options = manager.parse_hookimpl_opts(module, name)
        if options is None:
            continue
        hook = options.get("specname") or name
        if hook in REMOVED:
            raise BadPluginError(f"it implements the hook {hook!r}, which is gone: {REMOVED[hook]}")
        if hook not in HOOKS and not options.get("optionalhook"):
            hint = f"{did_you_mean(hook, HOOKS)} (known: {', '.join(HOOKS)}); was it made for a newer attnloom?"
            raise BadPluginError(f"it implements an unknown hook {hook!r}{hint}")
        if options.get("wrapper") or options.get("hookwrapper"):
            raise BadPluginError(f"its {hook} is a wrapper; a plugin may add to what others offer, never change it")


def collect(
    record: PluginRecord, module: ModuleType, manager: pluggy.PluginManager, settings: Settings | None = None
) -> dict[tuple[str, str], Contribution]:
    """What the plugin's hooks return, checked against their types and against what its metadata declares."""
    found: dict[tuple[str, str], Contribution] = {}
    for kind, (hook, expected) in COLLECTED.items():
        for item in results_of(hook, module, manager, settings=settings or Settings()):
            if not isinstance(item, expected):
                raise BadPluginError(f"its {hook} returned {item!r}, which is no {expected.__name__}")
            if not isinstance(item.name, str) or not NAME.match(item.name):
                raise BadPluginError(
                    f"its {hook} returned the name {item.name!r}, which does not match {NAME.pattern!r}"
                )
            if (kind, item.name) in found:
                raise BadPluginError(f"its {hook} returned {item.name!r} twice")
            found[kind, item.name] = complete(item, record) if isinstance(item, Variant) else item
    check_declared(set(found), set(record.provides), module)
    return found


def results_of(hook: str, module: ModuleType, manager: pluggy.PluginManager, **arguments: Any) -> list[Any]:
    """What the module's implementations of one hook return, in one list."""
    results: list[Any] = []
    for implementation in implementations(hook, module, manager):
        try:
            returned = call(implementation, **arguments)
            if isinstance(returned, (str, bytes, dict)) or not isinstance(returned, Iterable):
                raise TypeError(f"it must return an iterable of descriptors, got {returned!r}")
            results += returned
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            told = blame.told_with_place(error, module.__name__)
            raise BadPluginError(f"its {hook} raised {told}") from error
    return results


def implementations(hook: str, module: ModuleType, manager: pluggy.PluginManager) -> list[pluggy.HookImpl]:
    """The module's implementations of one hook, in the order in which the module defines them."""
    return [item for item in getattr(manager.hook, hook).get_hookimpls() if item.plugin is module]


def call(implementation: pluggy.HookImpl, **arguments: Any) -> Any:
    """Call one implementation with those of `arguments` that it takes."""
    taken = (*implementation.argnames, *implementation.kwargnames)
    return implementation.function(**{name: value for name, value in arguments.items() if name in taken})


def complete(variant: Variant, record: PluginRecord) -> Variant:
    """`variant` with its package filled in, once its contract and package are seen to be right."""
    if variant.abi != ABI:
        reason = f"its variant {variant.name!r} is of functor contract {variant.abi}, and this attnloom's is {ABI}"
        raise BadPluginError(reason, State.INCOMPATIBLE)
    package = variant.package or record.package
    if package.partition(".")[0] != record.package.partition(".")[0]:
        raise BadPluginError(f"the header of its variant {variant.name!r} is in {package!r}, not in {record.package!r}")
    return evolve(variant, package=package)


def check_declared(found: set[tuple[str, str]], declared: set[tuple[str, str]], module: ModuleType) -> None:
    """Refuse a plugin whose hooks and whose metadata disagree."""
    if extra := sorted(found - declared):
        raise BadPluginError(
            f"its hooks return {spell(extra)}, which `attnloom.provides` of its metadata does not declare"
        )
    if missing := sorted(declared - found):
        defined = {hook: getattr(module, hook) for hook in HOOKS if hasattr(module, hook)}
        unmarked = [hook for hook, function in defined.items() if not hasattr(function, "attnloom_impl")]
        hint = f"; {', '.join(unmarked)} is not marked with @hookimpl" if unmarked else ""
        raise BadPluginError(f"its metadata declares {spell(missing)}, which no hook returns{hint}")


def spell(keys: list[tuple[str, str]]) -> str:
    """`variant 'rope', variant 'alibi'`."""
    return ", ".join(f"{kind.replace('_', ' ')} {name!r}" for kind, name in keys)
