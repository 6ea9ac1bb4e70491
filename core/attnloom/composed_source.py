"""The C++ text of a composition: its parameter struct, the composed variant, and asserts that hold both sides equal."""

from __future__ import annotations

import ctypes
import re

from attnloom.param_struct import CPP_TYPES, fields_of
from attnloom.variant import FUNCTORS, Param, StaticParam, TensorParam


def source_of(members, params_type) -> str:
    """The text that a kernel's translation unit begins with; the same for the same variants and static parameters.

    Args:
        members: the chain, in order (`attnloom.compose.Member`).
        params_type: the ctypes struct whose layout `Params` must have.
    """
    names = ", ".join(member.alias for member in members) or "no variants"
    blocks = [
        f"// Composed by attnloom: {names}.\n#include <cstddef>\n#include <cstdint>\n\n#include <attnloom/compose.h>",
        *_includes(members),
        "\nnamespace attnloom::generated {\n",
        *(_member_params(member) for member in members),
        _params(members),
        "}  // namespace attnloom::generated\n",
        *(_checks(member) for member in members),
        "namespace attnloom::generated {\n",
        *(_layout_asserts(member.struct_name, params_of(params_type, member.alias)) for member in members),
        _layout_asserts("Params", params_type),
        _composed(members),
        "}  // namespace attnloom::generated\n",
    ]
    return "\n".join(blocks)


def params_of(params_type, alias: str):
    """The ctypes struct of one member's parameters."""
    return dict(params_type._fields_)[alias]


def _includes(members) -> list[str]:
    texts = [member.variant.text or f'#include "{member.include}"' for member in members]
    return list(dict.fromkeys(texts))


def _member_params(member) -> str:
    lines = [f"struct {member.struct_name} {{"]
    for param in member.variant.params:
        if isinstance(param, StaticParam):
            lines.append(f"  static constexpr {_static(param, member.statics[param.name])};")
    lines += [f"  {_field(param)};" for param in fields_of(member.variant)] or ["  int32_t Unused;"]
    return "\n".join([*lines, "};\n"])


def _static(param: StaticParam, value) -> str:
    if param.type is bool:
        return f"bool {param.name} = {'true' if value else 'false'}"
    return f"int32_t {param.name} = {value if value > -(2**31) else '-2147483647 - 1'}"


def _field(param: Param | TensorParam) -> str:
    if isinstance(param, TensorParam):
        return f"attnloom::TensorRef<{CPP_TYPES[param.dtype]}, {len(param.shape)}> {param.name}"
    return f"{CPP_TYPES[param.type]} {param.name}"


def _params(members) -> str:
    fields = [f"  {member.struct_name} {member.alias};" for member in members] or ["  int32_t Unused;"]
    return "\n".join(["struct Params {", *fields, "};\n"])


def _checks(member) -> str:
    struct, owner = member.variant.struct, _literal(f"{member.label}, variant {member.variant.name}")
    declared = [f"attnloom::functor::{functor}" for functor in FUNCTORS if functor in member.variant.functors]
    wanted = "false" if member.variant.use_softmax is False else "true"
    lines = [
        f"ATTNLOOM_CHECK_FUNCTORS({struct}, {owner}, {' | '.join(declared) or 'attnloom::functor::none'})",
        f"ATTNLOOM_CHECK_VARIANT({struct}, attnloom::generated::{member.struct_name}, {owner})",
        f"ATTNLOOM_CHECK_SOFTMAX({struct}, {owner}, {wanted})",
    ]
    return "\n".join([*lines, ""])


def _literal(text: str) -> str:
    return '"' + re.sub(r"[^A-Za-z0-9 ._,()'-]", "_", text) + '"'


def _layout_asserts(name: str, struct) -> str:
    lines = [f'static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, "layout");']
    lines += [
        f'static_assert(offsetof({name}, {field}) == {getattr(struct, field).offset}, "layout");'
        for field, *_ in struct._fields_
    ]
    return "\n".join([*lines, ""])


def _composed(members) -> str:
    arguments = ["Params", *(f"Member<::{m.variant.struct.removeprefix('::')}, &Params::{m.alias}>" for m in members)]
    return "using Variant = Composed<" + ",\n                         ".join(arguments) + ">;\n"
