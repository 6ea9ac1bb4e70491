"""The frequencies of rotary embeddings, and how contexts beyond the trained one stretch them."""

from __future__ import annotations

import math

import numpy as np
from attnloom.errors import ParamError

SCALINGS = ("none", "linear", "llama3", "yarn")


def rotary_dim(spec, params) -> int:
    """Leading elements that rotate: `head_dim * partial`."""
    return int(spec.head_dim * params["partial"])


def inv_freq(spec, params) -> np.ndarray:
    """Radians per position of each pair, float64 [rotary_dim / 2], scaled as `params["scaling"]` says."""
    check(spec, params)
    dim = params["rotary_dim"]
    plain = params["theta"] ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if params["scaling"] == "linear":
        return plain / params["factor"]
    if params["scaling"] == "llama3":
        return _llama3(plain, params)
    if params["scaling"] == "yarn":
        return _yarn(plain, params)
    return plain


def scale(spec, params) -> float:
    """The factor of sine and cosine: YaRN's `0.1 ln(factor) + 1`, else 1."""
    if params["scaling"] != "yarn":
        return 1.0
    factor = params["factor"]
    if params["mscale"] and params["mscale_all_dim"]:
        return _mscale(factor, params["mscale"]) / _mscale(factor, params["mscale_all_dim"])
    return _mscale(factor, 1.0)


def check_rotary_dim(spec, params) -> None:
    """Raise `ParamError` where the elements that rotate are no pairs, or more than a row has."""
    dim = params["rotary_dim"]
    if dim < 0 or dim % 2 or dim > spec.head_dim:
        whence = f", head_dim * rope.partial of {params['partial']}" if dim == rotary_dim(spec, params) else ""
        raise ParamError(f"rope.rotary_dim must be even and at most head_dim {spec.head_dim}, got {dim}{whence}")


def check(spec, params) -> None:
    """Raise `ParamError` for values that describe no rotation."""
    if params["scaling"] not in SCALINGS:
        raise ParamError(f"rope.scaling must be one of {', '.join(SCALINGS)}, got {params['scaling']!r}")
    for name in ("theta", "factor", "original_max_position"):
        if params[name] <= 0:
            raise ParamError(f"rope.{name} must be positive, got {params[name]}")
    if params["scaling"] == "llama3" and params["high_freq_factor"] <= params["low_freq_factor"]:
        raise ParamError(
            f"rope.high_freq_factor {params['high_freq_factor']} must exceed "
            f"rope.low_freq_factor {params['low_freq_factor']}"
        )


def _llama3(plain: np.ndarray, params) -> np.ndarray:
    """Llama 3.1: slow pairs are stretched, fast ones kept, those between blended by their turns in the context."""
    turns = params["original_max_position"] * plain / (2 * math.pi)
    low, high = params["low_freq_factor"], params["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (kept + (1.0 - kept) / params["factor"])


def _yarn(plain: np.ndarray, params) -> np.ndarray:
    """YaRN (arXiv:2309.00071, "NTK-by-parts"): a linear ramp over the pairs from kept to stretched."""
    low = _pair_of_turns(params["beta_fast"], params)
    high = _pair_of_turns(params["beta_slow"], params)
    if params["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, params["rotary_dim"] - 1)
    if low == high:
        high += 0.001
    stretched = np.clip((np.arange(len(plain)) - low) / (high - low), 0.0, 1.0)
    return plain * (1.0 - stretched + stretched / params["factor"])


def _pair_of_turns(turns: float, params) -> float:
    """The (fractional) pair that turns `turns` times within the trained context."""
    context, dim = params["original_max_position"], params["rotary_dim"]
    return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(params["theta"]))


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
