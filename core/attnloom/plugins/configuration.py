"""The configuration: which plugins are used, which of two is preferred, and the stacks that users name.

`Config.resolve()` looks in this order, and the first found wins whole:

1. what a parent process exported (worker processes never search);
2. the file that `ATTNLOOM_CONFIG` names (empty: no file);
3. the nearest `attnloom.toml`, or `pyproject.toml` with a table `[tool.attnloom]`, from the current directory upward to
   the home directory or the root of the repository;
4. `attnloom.toml` in the user's configuration folder.

`ATTNLOOM_PLUGINS`, `ATTNLOOM_DISABLE_PLUGINS` and `ATTNLOOM_STRICT` come over any file. (`ATTNLOOM_CACHE_DIR`, where
compiled kernels are kept, is read by `attnloom.jit` and is the environment's alone.)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import Converter, asdict, evolve, field, frozen

from attnloom.errors import ConfigError
from attnloom.folders import user_folder
from attnloom.plugins import schema
from attnloom.plugins.naming import plugin_key

EXPORT = "ATTNLOOM_RESOLVED_CONFIG"
"""The environment variable that carries a resolved configuration to worker processes."""


@frozen
class Stack:
    """A composition that the configuration names.

    Attributes:
        variants: names, or `"alias=name"`, in order.
        params: values of scalar parameters, keyed `"alias.param"`.
    """

    variants: tuple[str, ...] = field(converter=lambda value: schema.strings(value, "Stack variants"))
    params: dict[str, float | int | bool | str] = field(factory=dict)


def _switch(value: Any, _instance, attribute) -> bool:
    return schema.switch(value, f"Config {attribute.name}")


def _names(value: Any, _instance, attribute) -> tuple[str, ...]:
    return schema.names(value, f"Config {attribute.name}")


_as_switch = Converter(_switch, takes_self=True, takes_field=True)
_as_names = Converter(_names, takes_self=True, takes_field=True)


@frozen(kw_only=True)
class Config:
    """The resolved configuration of one `PluginSet`; equal content is equal. Pickles.

    Names may be written as users write them; what makes no sense raises `ConfigError`.

    Attributes:
        autoload: whether plugins that no option names are used.
        enable: plugins or distributions whose failure is fatal.
        disable: plugins or distributions that are never imported.
        required: PEP 508 requirements on plugin distributions.
        strict: whether every plugin's failure is fatal.
        prefer: who provides a name that two plugins offer: `"variant:rope" -> plugin or distribution`; and
            `"tile" -> heuristic`, the one that `tile="auto"` means.
        stacks: the compositions that users name.
        settings: of each plugin or distribution that has a table `[plugin.NAME]`, what is in it.
        source: where the configuration was found, for people.
    """

    autoload: bool = field(default=True, converter=_as_switch)
    enable: tuple[str, ...] = field(default=(), converter=_as_names)
    disable: tuple[str, ...] = field(default=(), converter=_as_names)
    required: tuple[str, ...] = field(default=(), converter=lambda value: schema.requirements(value, "Config required"))
    strict: bool = field(default=False, converter=_as_switch)
    prefer: dict[str, str] = field(factory=dict, converter=lambda value: schema.prefer_table(value, "Config prefer"))
    stacks: dict[str, Stack] = field(
        factory=dict, converter=lambda value: schema.stacks_table(value, "Config stacks", Stack)
    )
    settings: dict[str, dict[str, bool | int | float | str]] = field(
        factory=dict, converter=lambda value: schema.settings_tables(value, "Config settings")
    )
    source: str = field(default="defaults", eq=False)

    @classmethod
    def resolve(cls, environ: Mapping[str, str] | None = None, start: Path | None = None) -> Config:
        """The configuration of this process.

        Args:
            environ: the environment, by default this process's own.
            start: where the search for a file begins, by default the current directory.

        Raises:
            ConfigError: a file or variable is unreadable, or has a key or value that means nothing.
        """
        environ = os.environ if environ is None else environ
        if exported := inherited(environ):
            return cls.from_export(exported)
        return from_environment(from_file(find_file(environ, start)), environ)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], source: str = "a mapping") -> Config:
        """The configuration that the tables of an `attnloom.toml` hold. Raises `ConfigError`."""
        return cls(**schema.parse(data, source, Stack), source=source)

    @classmethod
    def from_export(cls, text: str) -> Config:
        """The configuration that `export` wrote. Raises `ConfigError`."""
        try:
            return cls(**json.loads(text)["config"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{EXPORT} holds no exported configuration: {error}") from error

    def export(self, *, for_any_process: bool = True) -> str:
        """The configuration as text, for the environment variable `EXPORT` of a worker process.

        Args:
            for_any_process: whether any process takes it, or only one that multiprocessing started.
        """
        return json.dumps({"config": asdict(self), "for_any_process": for_any_process})


def inherited(environ: Mapping[str, str]) -> str | None:
    """The configuration that a parent process exported for this one, or none."""
    text = environ.get(EXPORT)
    if not text:
        return None
    try:
        for_any_process = json.loads(text).get("for_any_process", True)
    except (ValueError, AttributeError):
        return text
    return text if for_any_process or is_worker() else None


def is_worker() -> bool:
    """Whether multiprocessing started this process."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def find_file(environ: Mapping[str, str], start: Path | None = None) -> Path | None:
    """The file that holds the configuration, or none."""
    if (named := environ.get("ATTNLOOM_CONFIG")) is not None:
        if not named.strip():
            return None
        path = Path(os.path.expanduser(named))
        if not path.is_file():
            raise ConfigError(f"ATTNLOOM_CONFIG names {named!r}, which is no file; leave it empty for no configuration")
        return path.absolute()
    for folder in upward(start):
        if (path := folder / "attnloom.toml").is_file():
            return path
        if (path := folder / "pyproject.toml").is_file() and has_table(path):
            return path
    path = user_folder("config") / "attnloom.toml"
    return path if path.is_file() else None


def upward(start: Path | None) -> Iterator[Path]:
    """The current directory and its parents, up to and with the home directory or a repository's root."""
    try:
        start = (start or Path.cwd()).resolve()
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        return
    for folder in (start, *start.parents):
        yield folder
        if folder == home or (folder / ".git").exists():
            return


def has_table(path: Path) -> bool:
    """Whether a `pyproject.toml` configures attnloom. One that is broken but never names attnloom is passed by."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return False
    return "attnloom" in text and isinstance(read_toml(path).get("tool", {}).get("attnloom"), dict)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises `ConfigError` naming it."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def from_file(path: Path | None) -> Config:
    """The configuration that a file holds, or the default."""
    if path is None:
        return Config()
    data = read_toml(path)
    if path.name == "pyproject.toml":
        data = data.get("tool", {}).get("attnloom", {})
    return Config.from_mapping(data, str(path))


def from_environment(config: Config, environ: Mapping[str, str]) -> Config:
    """`config` with what the environment says instead."""
    changes: dict[str, Any] = {}
    allowed = listed(environ, "ATTNLOOM_PLUGINS")
    denied = listed(environ, "ATTNLOOM_DISABLE_PLUGINS") or ()
    if allowed is not None:
        if both := sorted(set(allowed) & set(denied)):
            raise ConfigError(f"{both} stand in both ATTNLOOM_PLUGINS and ATTNLOOM_DISABLE_PLUGINS; leave them in one")
        changes |= {"autoload": False, "enable": allowed}
        changes["disable"] = tuple(name for name in config.disable if name not in allowed)
    if denied:
        changes["disable"] = tuple(dict.fromkeys([*changes.get("disable", config.disable), *denied]))
        changes["enable"] = tuple(name for name in changes.get("enable", config.enable) if name not in denied)
    if "ATTNLOOM_STRICT" in environ:
        changes["strict"] = switch(environ, "ATTNLOOM_STRICT")
    if not changes:
        return config
    used = [name for name in ENVIRONMENT if name in environ]
    return evolve(config, **changes, source=f"{config.source}; over it {', '.join(used)}")


ENVIRONMENT = ("ATTNLOOM_PLUGINS", "ATTNLOOM_DISABLE_PLUGINS", "ATTNLOOM_STRICT")


def listed(environ: Mapping[str, str], variable: str) -> tuple[str, ...] | None:
    """The names in a comma-separated variable; none where it is not set."""
    if variable not in environ:
        return None
    return tuple(dict.fromkeys(plugin_key(part) for part in environ[variable].split(",") if part.strip()))


def switch(environ: Mapping[str, str], variable: str) -> bool:
    """A variable that is on or off. Raises `ConfigError` for anything else."""
    value = environ[variable].strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("", "0", "false", "no", "off"):
        return False
    raise ConfigError(f"{variable} must be 0 or 1, got {environ[variable]!r}")
