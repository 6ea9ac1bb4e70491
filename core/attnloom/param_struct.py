"""The C layout of run-time parameters: ctypes mirrors of the structs in the generated C++ text."""

from __future__ import annotations

import ctypes
from functools import cache

from attnloom.variant import Param, StaticParam, TensorParam, Variant

CPP_TYPES = {
    float: "float",
    int: "int32_t",
    bool: "bool",
    "float64": "double",
    "float32": "float",
    "float16": "attnloom::Half",
    "bfloat16": "attnloom::BFloat16",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint32": "uint32_t",
    "uint8": "uint8_t",
    "bool": "bool",
}
"""The C++ type of a scalar parameter's Python type and of a tensor parameter's dtype."""

_SCALARS = {float: ctypes.c_float, int: ctypes.c_int32, bool: ctypes.c_bool}


def fields_of(variant: Variant) -> list[Param | TensorParam]:
    """The parameters that are fields of the variant's struct, in its order."""
    return [
        param
        for param in variant.params
        if not isinstance(param, StaticParam) and not getattr(param, "host_only", False)
    ]


@cache
def tensor_ref(rank: int) -> type[ctypes.Structure]:
    """`attnloom::TensorRef` of `rank` dimensions: data pointer, shape and stride in elements."""
    fields = [("data", ctypes.c_void_p)]
    if rank:
        fields += [("shape", ctypes.c_int64 * rank), ("stride", ctypes.c_int64 * rank)]
    return type(f"TensorRef{rank}", (ctypes.Structure,), {"_fields_": fields})


def params_struct(members) -> type[ctypes.Structure]:
    """The struct `Params` of a chain: one nested struct a member, named by its alias."""
    fields = [(member.alias, _member_struct(member)) for member in members]
    return type("Params", (ctypes.Structure,), {"_fields_": fields or [("Unused", ctypes.c_int32)]})


def _member_struct(member) -> type[ctypes.Structure]:
    fields = [
        (param.name, tensor_ref(len(param.shape)) if isinstance(param, TensorParam) else _SCALARS[param.type])
        for param in fields_of(member.variant)
    ]
    return type(member.struct_name, (ctypes.Structure,), {"_fields_": fields or [("Unused", ctypes.c_int32)]})
