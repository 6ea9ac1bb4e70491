"""The keys of an `attnloom.toml`, and what each may hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnloom.errors import ConfigError
from attnloom.plugins.naming import NAME, did_you_mean, normalize_name, plugin_key
from attnloom.plugins.record import KINDS

TABLES = ("plugins", "prefer", "stacks", "plugin")
PLUGIN_KEYS = ("autoload", "enable", "disable", "required", "strict")
STACK_KEYS = ("variants", "params")


def parse(data: Mapping[str, Any], source: str, make_stack: Callable) -> dict[str, Any]:
    """The fields of a `Config` that the tables of `source` set. Raises `ConfigError` naming source, table and key."""
    if "tool" in data:
        raise ConfigError(f"{source}: write [plugins], not [tool.attnloom.plugins]; `tool` belongs to pyproject.toml")
    check_keys(data, TABLES, source)
    for name in TABLES:
        table(data.get(name, {}), f"{source}: [{name}]")
    fields = plugins_table(data.get("plugins", {}), f"{source}: [plugins]")
    fields["prefer"] = prefer_table(data.get("prefer", {}), f"{source}: [prefer]")
    fields["stacks"] = stacks_table(data.get("stacks", {}), f"{source}: [stacks]", make_stack)
    fields["settings"] = settings_tables(data.get("plugin", {}), f"{source}: [plugin]")
    return fields


def plugins_table(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`[plugins]`."""
    check_keys(data, PLUGIN_KEYS, where)
    fields: dict[str, Any] = {}
    for key in ("autoload", "strict"):
        if key in data:
            fields[key] = switch(data[key], f"{where} {key}")
    for key in ("enable", "disable"):
        fields[key] = names(data.get(key, []), f"{where} {key}")
    if both := sorted(set(fields["enable"]) & set(fields["disable"])):
        raise ConfigError(f"{where}: {both} stand in both enable and disable; leave them in one")
    fields["required"] = requirements(data.get("required", []), f"{where} required")
    return fields


def switch(value: Any, where: str) -> bool:
    """`value`, which must be true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{where} must be true or false, got {value!r}")
    return value


def names(value: Any, where: str) -> tuple[str, ...]:
    """The canonical spellings of an array of plugin or distribution names, each once."""
    return tuple(dict.fromkeys(plugin_key(name) for name in strings(value, where)))


def requirements(value: Any, where: str) -> tuple[str, ...]:
    """An array of PEP 508 requirements."""
    texts = strings(value, where)
    if texts:
        from packaging.requirements import InvalidRequirement, Requirement
    for text in texts:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            raise ConfigError(f"{where}: {text!r} is no requirement such as 'attnloom-rope>=0.1'") from error
    return texts


def prefer_table(data: Mapping[str, Any], where: str) -> dict[str, str]:
    """`[prefer]`: `"kind:name" = plugin or distribution`, and `tile = heuristic`."""
    fields = {}
    for key, value in table(data, where).items():
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{where} {key!r} must name a plugin, got {value!r}")
        kind, colon, name = (normalize_name(part) for part in key.partition(":"))
        if not colon and kind == "tile":
            fields["tile"] = normalize_name(value)
        elif kind in (*KINDS, "command") and name:
            fields[f"{kind}:{name}"] = plugin_key(value)
        else:
            known = [f"{kind}:{name or 'NAME'}" for kind in (*KINDS, "command")]
            raise ConfigError(f"{where} {key!r} is neither 'tile' nor one of {known}{did_you_mean(kind, KINDS)}")
    return fields


def stacks_table(data: Any, where: str, make_stack: Callable) -> dict[str, Any]:
    """`[stacks]`: a table of tables, or of stacks that were made before."""
    stacks: dict[str, Any] = {}
    for name, stack in table(data, where).items():
        key = identifier(name, f"{where}: stack")
        if key in stacks:
            raise ConfigError(f"{where} has {key!r} twice; `-` and `_` are one")
        inside = f"{where[:-1]}.{name}]" if where.endswith("]") else f"{where} {name!r}"
        stacks[key] = stack if isinstance(stack, make_stack) else make_stack(**stack_table(stack, inside))
    return stacks


def settings_tables(data: Any, where: str) -> dict[str, dict[str, bool | int | float | str]]:
    """`[plugin]`: a table for each plugin, of scalars that the plugin's own schema is held against when it loads."""
    settings: dict[str, dict] = {}
    for name, values in table(data, where).items():
        inside = f"{where[:-1]}.{name}]" if where.endswith("]") else f"{where} {name!r}"
        if (key := plugin_key(name)) in settings:
            raise ConfigError(f"{where} has {key!r} twice; `-` and `_` are one")
        settings[key] = {}
        for setting, value in table(values, inside).items():
            if not isinstance(value, (bool, int, float, str)):
                raise ConfigError(f"{inside} {setting!r} must be a scalar, got {value!r}")
            settings[key][normalize_name(setting)] = value
    return settings


def stack_table(data: Any, where: str) -> dict[str, Any]:
    """`[stacks.NAME]`."""
    check_keys(table(data, where), STACK_KEYS, where)
    members = []
    for member in strings(data.get("variants", []), f"{where} variants"):
        members.append("=".join(identifier(part, f"{where} variants: {member!r}") for part in member.split("=", 1)))
    if not members:
        raise ConfigError(f"{where} names no variants")
    params = {}
    for key, value in flat(table(data.get("params", {}), f"{where} params")).items():
        if not isinstance(value, (bool, int, float, str)):
            raise ConfigError(f"{where} params {key!r} must be a scalar, got {value!r}; give tensors in code")
        if key.count(".") != 1:
            raise ConfigError(f'{where} params {key!r} must be written "variant.param"')
        params[".".join(identifier(part, f"{where} params {key!r}") for part in key.split("."))] = value
    return {"variants": members, "params": params}


def flat(params: Mapping[str, Any]) -> dict[str, Any]:
    """`params` with `soft_cap = { cap = 50.0 }`, what TOML makes of a dotted key, written `"soft_cap.cap" = 50.0`."""
    pairs = {}
    for key, value in params.items():
        nested = {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, Mapping) else {key: value}
        pairs |= nested
    return pairs


def check_keys(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise `ConfigError` for the first key that is not known."""
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}{did_you_mean(key, known)} (known: {', '.join(known)})")


def table(data: Any, where: str) -> Mapping[str, Any]:
    """`data`, which must be a table."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a table, got {data!r}")
    return data


def strings(data: Any, where: str) -> tuple[str, ...]:
    """`data`, which must be an array of strings that are not empty."""
    if not isinstance(data, (list, tuple)) or not all(isinstance(item, str) and item.strip() for item in data):
        raise ConfigError(f"{where} must be an array of names, got {data!r}")
    return tuple(item.strip() for item in data)


def identifier(text: str, where: str) -> str:
    """The canonical spelling of a name, which must be one."""
    name = normalize_name(text)
    if not NAME.match(name):
        raise ConfigError(f"{where}: {text!r} is no name; names match {NAME.pattern!r}")
    return name
