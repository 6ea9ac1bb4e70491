"""What to compute: variants, heads, dims and dtypes. Says nothing of a batch, a device or a kernel."""

from __future__ import annotations

import math
import pickle
import types
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from attrs import field, frozen

from attnloom.dtypes import COMPUTE_DTYPES, dtype_name
from attnloom.errors import CompositionError, ParamError, UnsupportedError
from attnloom.tile import Tile, TileChoice
from attnloom.variant import Variant, normalize_name

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


def _dimension(instance, attribute, value) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnsupportedError(f"{attribute.name} must be an integer, got {value!r}")
    if value < 1:
        raise UnsupportedError(f"{attribute.name} must be at least 1, got {value}")


def _variants(value) -> tuple[str | Variant, ...]:
    if isinstance(value, (str, Variant)):
        meant = [name.strip() for name in value.split(",")] if isinstance(value, str) else [value]
        raise CompositionError(f"variants must be a list, got {value!r}; write variants={meant!r}")
    if not isinstance(value, Iterable):
        raise CompositionError(f"variants must be a list, got {value!r}")
    members = []
    for entry in value:
        if isinstance(entry, str):
            members.append("=".join(normalize_name(part) for part in entry.split("=")))
        elif isinstance(entry, Variant):
            members.append(entry)
        else:
            hint = "; Variant.from_mods makes one of a score_mod or mask_mod" if callable(entry) else ""
            raise CompositionError(f"a variant is a name, 'alias=name' or a Variant, got {entry!r}{hint}")
    return tuple(members)


def _params(value) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ParamError(f"params must be a mapping such as {{'soft_cap.cap': 50.0}}, got {value!r}")
    for key in value:
        if not isinstance(key, str):
            raise ParamError(f"a parameter is named 'variant.parameter', got {key!r}")
    return types.MappingProxyType({normalize_name(key): item for key, item in value.items()})


def _tile(value) -> str | Tile | TileChoice:
    if isinstance(value, (Tile, TileChoice)):
        return value
    if isinstance(value, str):
        return normalize_name(value)
    raise UnsupportedError(f"tile must be 'auto', the name of a tile heuristic, a Tile or a TileChoice, got {value!r}")


def _computed_in(name: str):
    """A converter of the dtype of queries or outputs in the field `name`."""
    return lambda value: dtype_name(value, name, COMPUTE_DTYPES)


def _follows(other: str, convert=lambda value: value):
    """A converter: the value of the field `other` where none is given."""
    return attrs.Converter(
        lambda value, self: convert(getattr(self, other) if value is None else value), takes_self=True
    )


def _scale(value, self) -> float:
    if value is not None:
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise UnsupportedError(f"sm_scale must be a number, got {value!r}") from error
    return 1.0 / math.sqrt(self.head_dim) if isinstance(self.head_dim, int) and self.head_dim > 0 else 1.0


@frozen(eq=False, repr=False)
class AttentionSpec:
    """One attention computation, apart from any batch.

    Attributes:
        variants: names, `"alias=name"` strings or `Variant` descriptors; transforms chain in this order.
        num_qo_heads, num_kv_heads: heads of q and out, of k and v; the first is a multiple of the second.
        head_dim: elements of a row of q and k; `head_dim_v` of v and out (none: the same).
        dtype: of q, a `torch.dtype` or its name: float32, float16 or bfloat16. Kept as a name.
        kv_dtype: of the cache (none: as q); also float8_e4m3fn and float8_e5m2. On the cpu any goes with any q;
            on CUDA q's own or one of fp8.
        out_dtype: of the output (none: as q).
        sm_scale: factor of `q . k` (none: `1 / sqrt(head_dim)`).
        params: values of the variants' parameters, keyed `"variant.parameter"`, read-only; `evolve` makes a spec with
            others, and a run or plan may give others.
        tile: `"auto"`, the name of a tile heuristic, a `Tile`, or a `TileChoice` of two.
        batch_invariant: split at fixed positions, so that a request's bits do not depend on its batch mates.
        debug: build with sanitizers and bounds-checked parameter tensors. What these find ends the process, with a
            message on stderr: a kernel's threads cannot raise, and what a sanitizer saw may have spoilt memory.
        plugins: a `PluginSet` (none: the process-wide one).

    Raises:
        UnsupportedError, CompositionError, ParamError: for dims, dtypes, variants or params that cannot be right.
    """

    variants: tuple[str | Variant, ...] = field(converter=_variants)
    num_qo_heads: int = field(validator=_dimension)
    num_kv_heads: int = field(validator=_dimension)
    head_dim: int = field(validator=_dimension)
    head_dim_v: int = field(default=None, converter=_follows("head_dim"), validator=_dimension)
    dtype: str = field(default="bfloat16", converter=_computed_in("dtype"))
    kv_dtype: str = field(default=None, converter=_follows("dtype", lambda value: dtype_name(value, "kv_dtype")))
    out_dtype: str = field(default=None, converter=_follows("dtype", _computed_in("out_dtype")))
    sm_scale: float = field(default=None, converter=attrs.Converter(_scale, takes_self=True))
    params: Mapping[str, Any] = field(factory=dict, converter=_params)
    tile: str | Tile | TileChoice = field(default="auto", converter=_tile)
    batch_invariant: bool = field(default=False, converter=bool)
    debug: bool = field(default=False, converter=bool)
    plugins: Any = None

    @num_kv_heads.validator
    def _divides_qo_heads(self, _attribute, value):
        if self.num_qo_heads % value:
            raise UnsupportedError(
                f"num_qo_heads {self.num_qo_heads} is not a multiple of num_kv_heads {value}: "
                "each kv head serves an equal group of query heads"
            )

    @sm_scale.validator
    def _is_finite(self, _attribute, value):
        if not abs(value) <= _FLOAT32_MAX:
            raise UnsupportedError(f"sm_scale must be a finite float32, got {value}")

    @classmethod
    def from_stack(cls, name: str, *, plugins=None, **overrides) -> AttentionSpec:
        """The spec of a `[tool.attnloom.stacks.<name>]` table; `overrides` are the other fields of a spec.

        `params` given here add to the stack's and win over them.

        Raises:
            UnknownNameError: the configuration has no such stack.
            ParamError, UnknownNameError, PluginError: it names a parameter or variant that is none, and the message
                the stack and the file.
        """
        stack = _plugin_set(plugins).stack(name)
        params = {**_params(dict(stack.params)), **_params(overrides.pop("params", {}))}
        overrides.setdefault("variants", stack.variants)
        return cls(params=params, plugins=plugins, **overrides)

    @property
    def group(self) -> int:
        """Query heads a kv head."""
        return self.num_qo_heads // self.num_kv_heads

    @property
    def plugin_set(self):
        """The `PluginSet` that names are looked up in."""
        return _plugin_set(self.plugins)

    def read_now(self) -> tuple:
        """What the Python functions among the variants would read if they were lowered now; empty without any."""
        return tuple(v.mods.read_now() for v in self.variants if isinstance(v, Variant) and v.mods is not None)

    def evolve(self, **changes) -> AttentionSpec:
        """A copy with other fields; a default that followed a changed field (sm_scale of head_dim) follows it again."""
        values = _fields(self)
        if "head_dim" in changes:
            if math.isclose(self.sm_scale, 1.0 / math.sqrt(self.head_dim)):
                values.pop("sm_scale")
            if self.head_dim_v == self.head_dim:
                values.pop("head_dim_v")
        if "dtype" in changes:
            for follower in ("kv_dtype", "out_dtype"):
                if values[follower] == self.dtype:
                    values.pop(follower)
        return AttentionSpec(**{**values, **changes})

    def __eq__(self, other) -> bool:
        if not isinstance(other, AttentionSpec):
            return NotImplemented
        mine, theirs = _fields(self), _fields(other)
        return _equal_params(mine.pop("params"), theirs.pop("params")) and mine == theirs

    def __hash__(self) -> int:
        values = _fields(self)
        names = tuple(sorted(values.pop("params")))
        values.pop("plugins")
        return hash((names, *values.values()))

    def __repr__(self) -> str:
        shown = []
        for attribute in attrs.fields(AttentionSpec):
            value = getattr(self, attribute.name)
            if attribute.name in ("batch_invariant", "debug", "plugins", "params") and not value:
                continue
            shown.append(f"{attribute.name}={_short(value)}")
        return f"AttentionSpec({', '.join(shown)})"

    def __reduce__(self):
        values = _fields(self)
        values["params"] = dict(self.params)
        _refuse_local_functions(values)
        return _rebuild, (values,)


def _plugin_set(plugins):
    if plugins is not None:
        return plugins
    from attnloom.plugins import PluginSet

    return PluginSet.default()


def _fields(spec: AttentionSpec) -> dict[str, Any]:
    return {attribute.name: getattr(spec, attribute.name) for attribute in attrs.fields(AttentionSpec)}


def _rebuild(values: dict[str, Any]) -> AttentionSpec:
    return AttentionSpec(**values)


def _equal_params(mine: Mapping, theirs: Mapping) -> bool:
    return mine.keys() == theirs.keys() and all(_equal_value(mine[key], theirs[key]) for key in mine)


def _equal_value(a, b) -> bool:
    if a is b:
        return True
    if hasattr(a, "shape") or hasattr(b, "shape"):
        if _on_device(a) or _on_device(b):
            return False  # the same tensor or another one: to look at its values would wait for the device
        import numpy as np

        a, b = np.asarray(a), np.asarray(b)
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b))
    return a == b


def _on_device(value) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"


def _short(value) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Variant):
        return f"<Variant {value.name}>"
    if isinstance(value, tuple):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    if hasattr(value, "shape"):
        return f"<{value.dtype} tensor {list(value.shape)}>"
    return repr(value)


def _refuse_local_functions(values: dict[str, Any]) -> None:
    for name, value in (*values.items(), *values["params"].items()):
        local = isinstance(value, types.FunctionType) and {"<lambda>", "<locals>"} & set(value.__qualname__.split("."))
        if local:
            raise pickle.PicklingError(
                f"{name} is {value.__qualname__}, which another process cannot import; "
                "move it to the top level of a module and name it there"
            )
