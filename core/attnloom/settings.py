"""Settings of a plugin: which it has, and the values that the configuration gives it in `[plugin.NAME]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from attnloom.errors import ConfigError
from attnloom.names import NAME

TYPES = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
"""The types that a setting may have, with what a user is told to write."""

Scalar = bool | int | float | str


@frozen
class Setting:
    """One setting that a plugin understands.

    Attributes:
        name: its key in the table `[plugin.NAME]` of the configuration.
        type: `bool`, `int`, `float` or `str`; an integer is taken for a `float`.
        default: the value where the configuration gives none.
        required: whether the configuration has to give one.
        choices: the values allowed, or none for any.
        doc: one line, with the unit.
    """

    name: str = field()
    type: type = field(default=str)
    default: Scalar | None = field(default=None, kw_only=True)
    required: bool = field(default=False, kw_only=True)
    choices: Sequence[Scalar] | None = field(
        default=None, kw_only=True, converter=lambda value: None if value is None else tuple(value)
    )
    doc: str = field(default="", kw_only=True)

    @name.validator
    def _is_a_name(self, _attribute, value):
        if not isinstance(value, str) or not NAME.match(value):
            raise ConfigError(f"the name of a setting must match {NAME.pattern!r}, got {value!r}")

    @type.validator
    def _is_known(self, _attribute, value):
        if value not in TYPES:
            raise ConfigError(f"setting {self.name!r}: type must be bool, int, float or str, got {value!r}")

    def __attrs_post_init__(self):
        if self.default is not None:
            self.accept(self.default)

    def accept(self, value: Any) -> Scalar:
        """`value` as this setting's type. Raises `ConfigError` for one that it does not take."""
        fits = isinstance(value, self.type) or (self.type is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and self.type is not bool):
            raise ConfigError(f"{self.name} must be {TYPES[self.type]}, got {value!r}")
        if self.choices is not None and value not in self.choices:
            raise ConfigError(f"{self.name} must be one of {', '.join(map(repr, self.choices))}, got {value!r}")
        return self.type(value)


class Settings(Mapping):
    """The values of one plugin's settings, read as `settings.name` or `settings["name"]`; they never change."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Scalar | None] | None = None):
        object.__setattr__(self, "_values", MappingProxyType(dict(values or {})))

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(
                f"the plugin declares no setting {name!r}; it has {', '.join(self) or 'none'}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"settings do not change: set {name!r} in the configuration")

    def __getitem__(self, name: str) -> Scalar | None:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Settings({dict(self._values)})"

    def __reduce__(self):
        return Settings, (dict(self._values),)


def settle(declared: Sequence[Setting], given: Mapping[str, Scalar], where: str) -> Settings:
    """The values of the settings `declared`, from those that the configuration has `given`.

    Args:
        where: the table, for messages.

    Raises:
        ConfigError: an unknown or missing key, or a value of another type; the message has near names.
    """
    from attnloom.plugins.naming import did_you_mean

    known = {setting.name: setting for setting in declared}
    for key in given:
        if key not in known:
            names = ", ".join(known) or "none"
            raise ConfigError(f"{where}: unknown setting {key!r}{did_you_mean(key, known)} (the plugin has: {names})")
    values = {}
    for name, setting in known.items():
        if name in given:
            try:
                values[name] = setting.accept(given[name])
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
        elif setting.required:
            about = f", {setting.doc}" if setting.doc else ""
            raise ConfigError(f"{where}: the plugin needs a setting {name!r} ({TYPES[setting.type]}{about})")
        else:
            values[name] = setting.default
    return Settings(values)
