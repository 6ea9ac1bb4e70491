"""`PluginSet`: the plugins of one configuration, found once, loaded when first needed."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnloom
from attnloom.errors import AttnloomError, PluginError, UnavailableError, UnknownNameError
from attnloom.plugins import discovery
from attnloom.plugins.configuration import EXPORT, Config, Stack
from attnloom.plugins.naming import did_you_mean, normalize_name, plugin_key
from attnloom.plugins.record import PluginRecord, State

if TYPE_CHECKING:
    from attnloom.index import StorageFormat
    from attnloom.plugins.loading import Contribution
    from attnloom.settings import Settings
    from attnloom.tile import TileHeuristic
    from attnloom.variant import Variant

log = logging.getLogger("attnloom.plugins")

RESERVED = (("storage_format", "dense"), ("tile_heuristic", "auto"), ("variant", "causal"))
"""What the core provides, under names that no plugin may take."""


class PluginSet:
    """What the installed plugins provide, by name, under one configuration.

    Metadata is read when something is first asked for and a plugin is imported when something that it provides is.
    Sets are independent of each other and thread-safe; a pickled set arrives as its configuration. Names may be written
    with `-` or `_`.
    """

    _default: PluginSet | None = None
    _default_lock = threading.RLock()

    def __init__(self, config: Config, *, paths: Sequence[str] | None = None):
        """A set under `config`, of the plugins found in `paths`, by default where Python finds packages."""
        self.config = config
        self._paths = None if paths is None else tuple(paths)
        self._lock = threading.RLock()
        self._lazy_manager = None
        self._records: list[PluginRecord] | None = None
        self._contributions: dict[tuple[str, str, int], Contribution] = {}
        self._settings: dict[str, Settings] = {}
        self._loading: set[int] = set()
        self._checked = False
        self._warned: set[str] = set()
        self._core = PluginRecord(
            name="core",
            distribution="attnloom",
            version=attnloom.__version__,
            module="attnloom.builtin",
            provides=RESERVED,
            location=str(Path(attnloom.__file__).parents[1]),
            state=State.LOADED,
        )
        _all_sets.add(self)

    @classmethod
    def default(cls) -> PluginSet:
        """The set of this process, under the configuration that is found when it is first asked for.

        Processes that multiprocessing starts from here on receive that configuration and never search.

        Raises:
            ConfigError: the configuration is wrong.
        """
        if cls._default is None:
            with cls._default_lock:
                if cls._default is None:
                    config = Config.resolve()
                    os.environ[EXPORT] = config.export(for_any_process=False)
                    cls._default = cls(config)
        return cls._default

    @classmethod
    def from_config(cls, config: Config, *, paths: Sequence[str] | None = None) -> PluginSet:
        """A set of its own under `config`, of the plugins found in `paths`, by default where Python finds packages."""
        return cls(config, paths=paths)

    def __reduce__(self):
        return _received, (self.config, self._paths)

    def __repr__(self) -> str:
        return f"PluginSet({self.config.source})"

    # What is there

    def records(self) -> tuple[PluginRecord, ...]:
        """Every plugin installed, the core's own first, with its state. Imports none, raises for none."""
        with self._lock:
            if self._records is None:
                records = discovery.scan(self._paths, core_version=attnloom.__version__, reserved=RESERVED)
                for warning in discovery.decide(records, self.config):
                    log.warning("attnloom: %s", warning)
                self._records = records
            return (self._core, *self._records)

    def names(self, kind: str) -> tuple[str, ...]:
        """The names of one kind that can be asked for, sorted. Imports no plugin."""
        offered = {key for record in self.records() if record.offers for key in record.provides}
        return tuple(sorted(name for its_kind, name in offered if its_kind == kind))

    def clashes(self) -> dict[tuple[str, str], tuple[PluginRecord, ...]]:
        """Each `(kind, name)` that several plugins offer and that the configuration gives to none of them."""
        keys = sorted({key for record in self.records() for key in record.provides})
        return {key: found for key in keys if len(found := self._candidates(*key)) > 1}

    # What is asked for

    def variant(self, name: str) -> Variant:
        """The variant called `name`, its package filled in.

        Raises:
            UnknownNameError: no plugin provides it; the message has near names.
            UnavailableError: a plugin would, but is disabled, incompatible or broken; the cause is chained.
            PluginError: two plugins offer it, or a plugin that the configuration names cannot be used.
        """
        return self._get("variant", name)

    def storage_format(self, name: str) -> StorageFormat:
        """The storage format called `name`, a stateless object. Raises as `variant` does."""
        return self._get("storage_format", name)

    def tile_heuristic(self, name: str) -> TileHeuristic:
        """The tile heuristic called `name`; `"auto"` is the one that `prefer.tile` names, or the core's.

        Raises as `variant` does.
        """
        return self._get("tile_heuristic", name)

    def provider(self, kind: str, name: str) -> PluginRecord:
        """The plugin that provides a name, without loading it. Raises as `variant` does."""
        return self._provider(kind, self._meant(kind, name))

    def settings(self, plugin: str) -> Settings:
        """The settings in force of a plugin, which is loaded for it. Raises as `variant` does."""
        key = plugin_key(plugin)
        found = [record for record in self.records()[1:] if record.is_called(key)]
        if not found:
            raise UnknownNameError(f"no plugin {plugin!r}{did_you_mean(key, discovery.known_names(self.records()))}")
        with self._lock:
            self._check_named(found[:1])
            self._load(found[0], f"the settings of {plugin!r}")
            return self._settings[found[0].key]

    def stack(self, name: str) -> Stack:
        """The composition that the configuration calls `name`, held to what its variants declare.

        Raises:
            UnknownNameError: there is none.
            ParamError, and what `variant` raises: what it names is wrong; the message has the stack and the file.
        """
        from attnloom.param_values import check_scalars

        key, stacks = normalize_name(name), self.config.stacks
        if key not in stacks:
            known = f"configured: {', '.join(sorted(stacks)) or 'none'}; {self.config.source}"
            raise UnknownNameError(f"no stack {name!r}{did_you_mean(key, stacks)} ({known})")
        try:
            check_scalars(stacks[key].variants, stacks[key].params, self)
        except AttnloomError as error:
            raise type(error)(f"[stacks.{key}] ({self.config.source}): {error}") from error
        return stacks[key]

    def header_dir(self, variant: Variant) -> Path:
        """The folder from which `variant.header` is included: that of its package.

        Raises:
            PluginError: there is no such folder, the header is not in it, or it belongs to a module without a package,
                whose folder would be that of every other package too.
        """
        import importlib.util

        package = variant.package
        if package is None:
            raise PluginError(f"variant {variant.name!r}: give package=, the one in which {variant.header!r} lies")
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise PluginError(f"variant {variant.name!r}: its package {package!r} cannot be found")
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        if not folders:
            raise PluginError(
                f"variant {variant.name!r}: {package!r} is a module, not a package: put it in a package of its own, "
                f"with {variant.header!r} beside it"
            )
        for folder in folders:
            if (folder / variant.header).is_file():
                return folder
        places = ", ".join(map(str, folders))
        raise PluginError(f"variant {variant.name!r}: no header {variant.header!r} in {places}; is it in the wheel?")

    # What plugins hear

    def notify_compiled(self, report: Any) -> None:
        """Tell observers that a kernel was compiled. Whatever an observer raises is logged once and changes nothing."""
        from attnloom.plugins import loading

        with self._lock:
            for record in self.records()[1:]:
                if record.offers and record.state is State.FOUND and (record.named or not record.provides):
                    self._try_load(record)
            observers = self._manager.hook.attnloom_kernel_compiled.get_hookimpls()
        for observer in sorted(observers, key=lambda item: item.plugin_name):
            try:
                loading.call(observer, report=report, settings=self._settings[observer.plugin_name])
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                told = f"observer {observer.plugin_name} raised {discovery.describe(error)}; it changes nothing"
                self.warn_once(told, key=f"observer {observer.plugin_name}")

    def commands(self) -> dict[str, list[tuple[str, Any]]]:
        """The subcommands that plugins add: for each name, who offers it, and the command. Loads every plugin."""
        from attnloom.plugins import loading

        found: dict[str, list[tuple[str, Any]]] = {}
        with self._lock:
            labels = {r.key: r.label for r in self.records()[1:] if r.offers and self._try_load(r)}
            implementations = self._manager.hook.attnloom_commands.get_hookimpls()
        for implementation in sorted(implementations, key=lambda item: item.plugin_name):
            label, own = labels[implementation.plugin_name], {}

            def register(name: str, command: Any, own: dict = own) -> None:
                own[normalize_name(name)] = command

            try:
                loading.call(implementation, register=register, settings=self._settings[implementation.plugin_name])
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                log.warning("attnloom: the commands of plugin %s are left out: %s", label, discovery.describe(error))
                continue
            for name, command in own.items():
                found.setdefault(name, []).append((label, command))
        return {name: self._preferred_commands(name, offers) for name, offers in sorted(found.items())}

    def warn_once(self, message: str, key: str = "") -> None:
        """Log a warning unless this set has logged it before, or another of the same `key`."""
        with self._lock:
            if (key or message) in self._warned:
                return
            self._warned.add(key or message)
        log.warning("attnloom: %s", message)

    # How it is found

    def _preferred_commands(self, name: str, offers: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        choice = self.config.prefer.get(f"command:{name}")
        chosen = {record.label for record in self.records() if choice and record.is_called(choice)}
        return [offer for offer in offers if offer[0] in chosen] or offers

    def _meant(self, kind: str, name: str) -> str:
        key = normalize_name(name)
        return self.config.prefer.get("tile", key) if (kind, key) == ("tile_heuristic", "auto") else key

    @property
    def _manager(self):
        if self._lazy_manager is None:
            from attnloom.plugins import loading

            self._lazy_manager = loading.new_manager()
        return self._lazy_manager

    def _get(self, kind: str, name: str) -> Any:
        key = self._meant(kind, name)
        with self._lock:
            self._check_named([] if self._candidates(kind, key) else self._aside(kind, key))
            record = self._provider(kind, key)
            if record is not self._core:
                self._load(record, f"{kind.replace('_', ' ')} {name!r}")
            elif (kind, key, id(record)) not in self._contributions:
                self._load_core()
            return self._contributions[kind, key, id(record)]

    def _provider(self, kind: str, name: str) -> PluginRecord:
        noun = f"{kind.replace('_', ' ')} {name!r}"
        candidates = self._candidates(kind, name)
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            offers = " and ".join(record.label for record in candidates)
            raise PluginError(
                f"{noun} is offered by {offers}; choose one in [prefer] of the configuration: "
                f'"{kind}:{name}" = "{candidates[0].distribution}"'
            )
        if aside := self._aside(kind, name):
            causes = "; ".join(record.status for record in aside)
            raise UnavailableError(f"{noun} cannot be had: {causes}") from aside[0].error
        known = self.names(kind)
        hint = did_you_mean(name, known) + self._elsewhere(kind, name)
        raise UnknownNameError(f"no {noun}{hint} (installed: {', '.join(known) or 'none'})")

    def _elsewhere(self, kind: str, name: str) -> str:
        """What else goes by this name: another kind, or a near name of a plugin that cannot be used."""
        for record in self.records():
            for other, its_name in record.provides:
                if its_name == name and other != kind:
                    return f"; {name!r} is a {other.replace('_', ' ')}"
        aside = {n: r for r in self.records() if not r.offers for k, n in r.provides if k == kind}
        if hint := did_you_mean(name, aside):
            record = aside[next(n for n in aside if repr(n) in hint)]
            return f"{hint} ({record.status})"
        return ""

    def _candidates(self, kind: str, name: str) -> tuple[PluginRecord, ...]:
        offering = tuple(record for record in self.records() if record.offers and (kind, name) in record.provides)
        choice = self.config.prefer.get(f"{kind}:{name}")
        if choice and len(offering) > 1:
            return tuple(record for record in offering if record.is_called(choice)) or offering
        return offering

    def _aside(self, kind: str, name: str) -> list[PluginRecord]:
        return [record for record in self.records() if not record.offers and (kind, name) in record.provides]

    def _check_named(self, told: Sequence[PluginRecord]) -> None:
        """Once: hold the configuration to what it names, and under `strict` every plugin to its word.

        Warns of plugins that cannot be used, but of those that an error tells of.
        """
        if self._checked:
            return
        problems = discovery.unmet(self.records(), self.config)
        if self.config.strict:
            aside = (State.FAILED, State.INCOMPATIBLE)
            problems += [(f"strict mode: {r.status}", r) for r in self.records() if r.state in aside]
        for sentence, record in problems:
            raise PluginError(sentence) from (record.error if record else None)
        for record in self.records()[1:]:
            if record.offers and (record.named or self.config.strict):
                self._load(record, "what the configuration names" if record.named else "strict mode")
            elif record.state in (State.FAILED, State.INCOMPATIBLE) and record not in told:
                log.warning("attnloom: %s", record.status)
        self._checked = True

    def _load(self, record: PluginRecord, wanted: str) -> None:
        """Load a plugin that is needed. Raises `UnavailableError` from its cause."""
        if id(record) in self._loading:
            raise PluginError(f"plugin {record.label} asks for {wanted} while it is being loaded itself")
        if not self._loads(record):
            raise UnavailableError(f"{wanted} cannot be had: {record.status}") from record.error

    def _try_load(self, record: PluginRecord) -> bool:
        """Load a plugin that can be done without; warn if that fails now. True if it is loaded."""
        before, loaded = record.state, self._loads(record)
        if not loaded and record.state is not before:
            log.warning("attnloom: %s", record.status)
        return loaded

    def _loads(self, record: PluginRecord) -> bool:
        """Load a plugin unless it is loaded; record what is wrong if that fails. True if it is loaded."""
        from attnloom.plugins import loading

        if record.state is State.FOUND and id(record) not in self._loading:
            self._loading.add(id(record))
            try:
                where = f"[plugin.{record.name}] ({self.config.source})"
                found = loading.load(record, self._manager, self.given_settings(record), where)
            except loading.BadPluginError as problem:
                record.state, record.reason, record.error = problem.state, str(problem), problem.__cause__
            else:
                self._contributions |= {(*key, id(record)): item for key, item in found.contributions.items()}
                self._settings[record.key] = found.settings
                record.state = State.LOADED
            finally:
                self._loading.discard(id(record))
        return record.state is State.LOADED

    def given_settings(self, record: PluginRecord) -> dict[str, Any]:
        """What the configuration says in the table of a plugin, under its own name or its distribution's. Checked only
        when the plugin is loaded, by the schema that it declares."""
        names = [name for name in self.config.settings if record.is_called(name)]
        return {key: value for name in names for key, value in self.config.settings[name].items()}

    def _load_core(self) -> None:
        from attnloom import builtin
        from attnloom.plugins import loading

        manager = loading.new_manager()
        manager.register(builtin)
        found = loading.collect(self._core, builtin, manager)
        self._contributions |= {(*key, id(self._core)): item for key, item in found.items()}


_all_sets: weakref.WeakSet[PluginSet] = weakref.WeakSet()


def _received(config: Config, paths: Sequence[str] | None) -> PluginSet:
    """The set that an unpickled one stands for: one for each configuration, however many specs arrive with it."""
    key = (config.export(), paths)
    with PluginSet._default_lock:
        if key not in _received_sets:
            _received_sets[key] = PluginSet(config, paths=paths)
        return _received_sets[key]


_received_sets: dict[tuple, PluginSet] = {}


def _renew_locks() -> None:
    """A forked child has one thread; a lock that another thread of its parent held would never be released."""
    PluginSet._default_lock = threading.RLock()
    for plugin_set in _all_sets:
        plugin_set._lock = threading.RLock()
        plugin_set._loading.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
