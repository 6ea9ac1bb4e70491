"""Names of the number formats, so that a spec needs no torch to be written, compared or pickled."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from attnloom.errors import UnsupportedError

CODES = {"float32": 0, "float16": 1, "bfloat16": 2, "float8_e4m3fn": 3, "float8_e5m2": 4}
"""Canonical name -> `attnloom::DType` of `args.h`."""

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""Canonical name -> bytes of an element."""

COMPUTE_DTYPES = ("float32", "float16", "bfloat16")
"""Canonical names of what queries and outputs may be of."""

_ALIASES = {
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2",
}


def dtype_name(dtype, what: str = "dtype", allowed: Collection[str] = tuple(CODES)) -> str:
    """The canonical name of a `torch.dtype`, a numpy dtype or a name such as `"bf16"`.

    Args:
        what: whose dtype it is, for messages.
        allowed: canonical names.

    Raises:
        UnsupportedError: for any other dtype; the message lists those allowed.
    """
    text = str(dtype).removeprefix("torch.").strip().lower()
    name = _ALIASES.get(text, text)
    if name not in allowed:
        known = [*allowed, *(alias for alias, meant in _ALIASES.items() if meant in allowed)]
        near = difflib.get_close_matches(name, known, n=1) if name not in CODES else []
        if name in ("float64", "double"):
            near = ["float32"]
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnsupportedError(f"{what} {dtype!r} is not one of {', '.join(allowed)}{hint}")
    return name


def torch_dtype(name: str):
    """The `torch.dtype` of a canonical name."""
    import torch

    return getattr(torch, name)
