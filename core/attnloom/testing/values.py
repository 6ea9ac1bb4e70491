"""Values for a variant's parameters: its example's, or made up from their declarations."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnloom.resolve import resolve_code
from attnloom.variant import Param, StaticParam, TensorParam, Variant

_SCALARS = {float: 0.5, int: 3, bool: True}


def values_for(variant: Variant, spec, qo_lens, kv_lens) -> dict[str, Any]:
    """Values by parameter name that fit the batch; those with a default are left to it.

    Raises:
        AssertionError: a required parameter that only the author can give a value for.
    """
    if variant.example is not None:
        return dict(resolve_code(variant.example)(spec, np.asarray(qo_lens), np.asarray(kv_lens)))
    rng = np.random.default_rng(len(variant.name))
    return {param.name: _made_up(variant, param, spec, rng) for param in variant.params if _is_required(param)}


def prefixed(alias: str, values: dict[str, Any]) -> dict[str, Any]:
    """`values` under the keys that a spec takes: `"alias.parameter"`."""
    return {f"{alias}.{name}": value for name, value in values.items()}


def _is_required(param) -> bool:
    given = param.computed is not None or getattr(param, "default", None) is not None
    return not given and not getattr(param, "host_only", False)


def _made_up(variant: Variant, param: Param | StaticParam | TensorParam, spec, rng) -> Any:
    if isinstance(param, StaticParam):
        return param.choices[0] if param.choices else {int: 2, bool: True}[param.type]
    if isinstance(param, Param):
        return _SCALARS[param.type]
    shape = [dim if isinstance(dim, int) else getattr(spec, str(dim), None) for dim in param.shape]
    if None in shape:
        raise AssertionError(
            f"variant {variant.name!r}: no value for {param.name!r} of shape {list(param.shape)} can be made up; give "
            'the descriptor example="module:fn", or override params_for(spec, qo_lens, kv_lens) in the suite'
        )
    if param.dtype == "float32":
        return rng.standard_normal(shape).astype(np.float32)
    return np.zeros(shape, param.dtype)
