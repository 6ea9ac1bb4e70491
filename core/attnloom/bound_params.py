"""Checked parameter values, laid out as the struct that a kernel reads."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from attnloom.param_struct import fields_of
from attnloom.param_tensor import ParamTensor
from attnloom.param_values import member_values
from attnloom.params import assign


class BoundParams:
    """The parameters of a chain, ready for a kernel. Holds every tensor alive; immutable.

    Attributes:
        struct: the ctypes struct; `address` is where it lies.
        values: `"alias.parameter"` -> Python scalar or `ParamTensor`, static and host-only parameters included.
    """

    def __init__(self, members, spec, params_type, given, device, by_alias):
        self._members = members
        self._spec = spec
        self._given = given
        self._device = device
        self._by_alias = by_alias
        self.struct = params_type()
        self.address = ctypes.addressof(self.struct)
        for member in members:
            _fill(getattr(self.struct, member.alias), member, by_alias[member.alias])

    @property
    def values(self) -> dict[str, Any]:
        """Every value by `"alias.parameter"`."""
        return {f"{alias}.{name}": value for alias, own in self._by_alias.items() for name, value in own.items()}

    @property
    def planned(self) -> tuple:
        """What `kv_range` reads, as comparable `(key, value)` pairs: another value needs another plan."""
        return tuple(
            (f"{member.alias}.{param.name}", _comparable(self._by_alias[member.alias][param.name]))
            for member in self._members
            for param in fields_of(member.variant)
            if member.variant.is_planned(param)
        )

    def namespace(self, alias: str) -> SimpleNamespace:
        """One member's values by name, tensors as numpy arrays: what its float64 reference reads."""
        own = self._by_alias[alias]
        return SimpleNamespace(
            **{name: value.numpy() if isinstance(value, ParamTensor) else value for name, value in own.items()}
        )

    def replace(self, params: Mapping[str, Any] | None) -> BoundParams:
        """These parameters with other values for `params`; what was computed from those is computed anew.

        Raises:
            ParamError: as `Composition.resolve`; also another value for a static parameter.
        """
        if not params:
            return self
        changed = assign(self._members, params)
        given = {alias: {**own, **changed[alias]} for alias, own in self._given.items()}
        by_alias = {
            member.alias: member_values(member, self._spec, given[member.alias], self._device)
            if changed[member.alias]
            else self._by_alias[member.alias]
            for member in self._members
        }
        return BoundParams(self._members, self._spec, type(self.struct), given, self._device, by_alias)


def bind(members, spec, params_type, given: dict[str, dict[str, Any]], device: str) -> BoundParams:
    """The parameters of `members` from what was `given` (by alias) and their defaults.

    Raises:
        ParamError: a parameter that is missing or does not fit its declaration.
    """
    by_alias = {member.alias: member_values(member, spec, given[member.alias], str(device)) for member in members}
    return BoundParams(members, spec, params_type, given, str(device), by_alias)


def _fill(struct, member, values: Mapping[str, Any]) -> None:
    for param in fields_of(member.variant):
        value = values[param.name]
        if isinstance(value, ParamTensor):
            value.write(getattr(struct, param.name))
        else:
            setattr(struct, param.name, value)


def _comparable(value: Any) -> Any:
    if not isinstance(value, ParamTensor):
        return value
    return (value.shape, value.numpy().tobytes()) if value.on_host else None
