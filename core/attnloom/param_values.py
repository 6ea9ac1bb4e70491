"""Values of one member's parameters: checked, converted, and computed where the user gave none."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnloom.errors import AttnloomError, CompositionError, ParamError
from attnloom.param_tensor import ParamTensor, as_param_tensor
from attnloom.params import assign
from attnloom.resolve import resolve_code
from attnloom.variant import Param, StaticParam, TensorParam, Variant, normalize_name

_DIMENSION = re.compile(r"(\w+)(?://(\d+))?\Z")
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_WANTED = {float: "a number", int: "an integer", bool: "True or False", str: "a string"}


def static_values(member, spec, given: Mapping[str, Any]) -> dict[str, int | bool]:
    """The member's static parameters: given, default, or computed from the spec and what else was given.

    Raises:
        ParamError: a static parameter that is missing, of the wrong type, none of its choices, or refused by its check.
    """
    known = _plain_values(member, given)
    params = [param for param in member.variant.params if isinstance(param, StaticParam)]
    for param in params:
        if param.name not in known:
            known[param.name] = _checked(member, param, _computed(member, param, spec, known))
    for param in params:
        if param.check is not None:
            _check(member, param.check, spec, known)
    return {param.name: known[param.name] for param in params}


def member_values(member, spec, given: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Every parameter of the member by name: scalars as Python values, tensors as `ParamTensor`.

    Raises:
        ParamError: a parameter that is missing or does not fit its declaration.
    """
    known: dict[str, Any] = {**_plain_values(member, given), **member.statics}
    _require_statics_unchanged(member, given)
    for param in member.variant.params:
        if isinstance(param, TensorParam) and param.name in given:
            known[param.name] = _tensor(member, param, given[param.name], spec, known, device)
    for param in member.variant.params:
        if param.name in known:
            continue
        if isinstance(param, TensorParam):
            value = param.value
            if value is None:
                value = _computed(member, param, spec, known)
            known[param.name] = _tensor(member, param, value, spec, known, device)
        else:
            known[param.name] = _checked(member, param, _computed(member, param, spec, known))
    if member.variant.check is not None:
        _check(member, member.variant.check, spec, known)
    return known


class _Named(NamedTuple):
    alias: str
    variant: Variant


def check_scalars(variants: Sequence[str], params: Mapping[str, Any], plugins) -> None:
    """Hold what is named to what plugins declare, as far as that can be told without a spec.

    Args:
        variants: names, or `"alias=name"`.
        params: values keyed `"alias.parameter"`; tensors are not looked at.
        plugins: the `PluginSet` that names are looked up in.

    Raises:
        UnknownNameError, PluginError: a name that no working plugin provides.
        ParamError: a parameter that none of the variants has, or a scalar that does not fit its declaration.
    """
    members = []
    for entry in variants:
        alias, _, name = entry.rpartition("=")
        members.append(_Named(normalize_name(alias or name), plugins.variant(name)))
    given = assign(members, params)
    for member in members:
        for param in member.variant.params:
            if param.name in given[member.alias] and not isinstance(param, TensorParam):
                _checked(member, param, given[member.alias][param.name])


def check_shapes(member, spec) -> None:
    """Raise `CompositionError` for a tensor parameter whose declared shape means nothing."""
    statics = {param.name: 1 for param in member.variant.params if isinstance(param, StaticParam)}
    for param in member.variant.params:
        if isinstance(param, TensorParam):
            for dim in param.shape:
                _size(member, param, dim, spec, statics)


def _plain_values(member, given: Mapping[str, Any]) -> dict[str, Any]:
    """The scalars that were given or have a plain default."""
    values = {}
    for param in member.variant.params:
        if isinstance(param, TensorParam):
            continue
        if param.name in given:
            values[param.name] = _checked(member, param, given[param.name])
        elif param.default is not None:
            values[param.name] = _checked(member, param, param.default)
        elif param.computed is None and getattr(param, "host_only", False):
            values[param.name] = None
    return values


def _require_statics_unchanged(member, given: Mapping[str, Any]) -> None:
    for name, compiled in member.statics.items():
        if name in given and given[name] != compiled:
            raise ParamError(
                f"parameter '{member.alias}.{name}' is a compile-time constant, compiled as {compiled!r} and now "
                f"{given[name]!r}; make another spec for it"
            )


def _computed(member, param, spec, known: Mapping[str, Any]) -> Any:
    """What the plugin's code makes of the spec and of the other values; an array for a tensor."""
    key = f"{member.alias}.{param.name}"
    if param.computed is None:
        about = f" ({param.doc})" if param.doc else ""
        raise ParamError(f"parameter {key!r}{about} has no default; give params={{{key!r}: ...}}")
    try:
        made = resolve_code(param.computed)(spec, dict(known))
        return np.asarray(made, param.dtype) if isinstance(param, TensorParam) else made
    except (AttnloomError, KeyboardInterrupt):
        raise
    except BaseException as error:
        told = _told(error, param.computed)
        raise ParamError(
            f"parameter {key!r}: its default, {param.computed} of {member.label}, failed: {told}"
        ) from error


def _check(member, check, spec, known: Mapping[str, Any]) -> None:
    """Let the plugin's code look at values together."""
    try:
        resolve_code(check)(spec, dict(known))
    except ParamError as error:
        if member.alias == normalize_name(member.variant.name):
            raise
        raise ParamError(f"{member.alias!r}, which is {member.variant.name!r}: {error}") from error
    except (AttnloomError, KeyboardInterrupt):
        raise
    except BaseException as error:
        told = _told(error, check)
        raise ParamError(f"the parameters of {member.alias!r}: {check} of {member.label} failed: {told}") from error


def _told(error: BaseException, code) -> str:
    """An exception with the line of the plugin's code that it came from."""
    from attnloom.plugins.blame import told_with_place

    return told_with_place(error, code.partition(":")[0] if isinstance(code, str) else code.__module__)


def _checked(member, param: Param | StaticParam, value: Any) -> Any:
    """`value` as the parameter's type; float32 rounding included, so that host and kernel mean one number."""
    key = f"{member.alias}.{param.name}"
    kinds = {float: (int, float, np.integer, np.floating), int: (int, np.integer), bool: (bool, np.bool_), str: (str,)}
    is_bool = isinstance(value, (bool, np.bool_))
    if not isinstance(value, kinds[param.type]) or (is_bool and param.type is not bool):
        raise ParamError(f"parameter {key!r} must be {_WANTED[param.type]}, got {value!r} ({type(value).__name__})")
    if param.type is float and isinstance(value, int) and abs(value) > _FLOAT32_MAX:
        raise ParamError(f"parameter {key!r} must be a finite float32, got an integer of {value.bit_length()} bits")
    value = param.type(value)
    if param.type is float:
        if not math.isfinite(value) or abs(value) > _FLOAT32_MAX:
            raise ParamError(f"parameter {key!r} must be a finite float32, got {value!r}")
        value = value if getattr(param, "host_only", False) else float(np.float32(value))
    if param.type is int and not -(2**31) <= value < 2**31:
        raise ParamError(f"parameter {key!r} must fit in 32 bits, got {value}")
    choices = getattr(param, "choices", None)
    if choices is not None and value not in choices:
        raise ParamError(f"parameter {key!r} must be one of {list(choices)}, got {value!r}")
    return value


def _tensor(member, param: TensorParam, value: Any, spec, known: Mapping[str, Any], device: str) -> ParamTensor:
    key = f"{member.alias}.{param.name}"
    tensor = as_param_tensor(key, value, param.dtype, device)
    wanted = tuple(_size(member, param, dim, spec, known) for dim in param.shape)
    fits = len(tensor.shape) == len(wanted) and all(w in ("*", s) for s, w in zip(tensor.shape, wanted, strict=True))
    if not fits:
        declared = ", ".join(str(dim) for dim in param.shape)
        sizes = ", ".join(str(size) for size in wanted)
        origin = "" if declared == sizes else f" = [{declared}]"
        raise ParamError(f"parameter {key!r} has shape {list(tensor.shape)}, expected [{sizes}]{origin}")
    if param.value is not None and any(map(operator.lt, tensor.shape, param.value.shape)):
        raise ParamError(
            f"parameter {key!r} has shape {list(tensor.shape)}, smaller than the captured tensor's "
            f"{list(param.value.shape)}, by which the function indexes it; a tensor whose size varies is an argument, "
            "declared as a TensorParam"
        )
    return tensor


def _size(member, param: TensorParam, dim: int | str, spec, known: Mapping[str, Any]) -> int | str:
    if dim == "*" or isinstance(dim, int):
        return dim
    match = _DIMENSION.match(dim)
    size = None
    if match:
        size = known[match[1]] if match[1] in known else getattr(spec, match[1], None)
    if isinstance(size, bool) or not isinstance(size, int):
        raise CompositionError(
            f"variant {member.variant.name!r} of {member.label}: dimension {dim!r} of tensor parameter {param.name!r} "
            "is no integer, static parameter or attribute of the spec, nor one of those // an integer"
        )
    return size // int(match[2]) if match[2] else size
