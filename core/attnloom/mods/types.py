"""Torch dtypes in C++: the types of statements, literals, and conversions that mean what torch's mean."""

from __future__ import annotations

import math

import numpy as np
import torch

from attnloom.mods.errors import Refusal

STATEMENT = {
    torch.bool: "bool",
    torch.uint8: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.float16: "float",
    torch.bfloat16: "float",
    torch.float32: "float",
    torch.float64: "double",
}
"""The C++ type a value is held in. Half precision is held as float, rounded to what its dtype can say."""

STORED = {torch.float16: "attnloom::Half", torch.bfloat16: "attnloom::BFloat16"}
"""Types that a value of the dtype is rounded to."""


def type_of(dtype: torch.dtype) -> str:
    """The C++ type of `dtype`. Raises `Refusal` for complex, quantised and unsigned 16 to 64 bit ones."""
    if dtype not in STATEMENT:
        known = ", ".join(name(known) for known in STATEMENT)
        raise Refusal(
            f"makes a value of dtype {name(dtype)}", known, "convert it with .to(...) outside of the function"
        )
    return STATEMENT[dtype]


def name(dtype: torch.dtype) -> str:
    """`"float32"`."""
    return str(dtype).removeprefix("torch.")


def is_integer(dtype: torch.dtype) -> bool:
    """Whether it is an integer dtype; bool is none."""
    return dtype is not torch.bool and not dtype.is_floating_point


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A Python number as a C++ expression of `dtype`, converted as torch converts it."""
    type_name = type_of(dtype)
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        return _float_literal(float(value), dtype)
    number = int(value)
    limits = torch.iinfo(dtype)
    if not limits.min <= number <= limits.max:
        raise Refusal(
            f"uses {number} as {name(dtype)}", f"{limits.min} to {limits.max}", "convert the other side to int64"
        )
    if dtype is torch.int32:
        return str(number) if number > limits.min else "(-2147483647 - 1)"
    if dtype is torch.int64:
        return f"int64_t{{{number}}}" if number > limits.min else "(int64_t{-9223372036854775807} - 1)"
    return f"static_cast<{type_name}>({number})"


def _float_literal(value: float, dtype: torch.dtype) -> str:
    single = dtype is not torch.float64
    if single:
        value = float(torch.tensor(value, dtype=dtype)) if dtype is not torch.float32 else _as_float32(value)
    if math.isnan(value):
        return "mods::nan" if single else "static_cast<double>(mods::nan)"
    if math.isinf(value):
        text = "attnloom::inf" if value > 0 else "(-attnloom::inf)"
        return text if single else f"static_cast<double>({text})"
    text = repr(np.float32(value).item()) if not single else str(np.float32(value))
    text = text if single else repr(value)
    text = text if any(mark in text for mark in ".en") else f"{text}.0"
    text += "f" if single else ""
    return f"({text})" if text.startswith("-") else text


def _as_float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def cast(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """The expression `text` of dtype `source` as one of dtype `target`."""
    if source is target:
        return text
    type_name = type_of(target)
    if target is torch.bool:
        return f"({text} != 0)"
    if source.is_floating_point and not target.is_floating_point:
        return f"mods::to_integer<{type_name}>({text})"
    if target in STORED:
        return rounded(text if type_of(source) == "float" else f"static_cast<float>({text})", target)
    return text if type_of(source) == type_name else f"static_cast<{type_name}>({text})"


def rounded(text: str, dtype: torch.dtype) -> str:
    """A float expression, rounded to `dtype` where that is narrower."""
    return f"mods::rounded<{STORED[dtype]}>({text})" if dtype in STORED else text
