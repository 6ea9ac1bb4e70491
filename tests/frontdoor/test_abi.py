"""The ctypes mirror and `args.h` agree, field by field."""

from __future__ import annotations

import ctypes

import pytest
from attnloom import abi, jit

TYPES = ("LevelView", "IndexView", "CacheView", "RaggedView", "RunArgs")


@pytest.fixture(scope="module")
def offsets():
    lines = []
    for name in TYPES:
        numbers = ", ".join(f"(long)offsetof(attnloom::{name}, {field})" for field, _ in getattr(abi, name)._fields_)
        lines.append(
            f'extern "C" __attribute__((visibility("default"))) const long {name}_layout[] = '
            f"{{(long)sizeof(attnloom::{name}), {numbers}}};"
        )
    source = "\n".join(["#include <attnloom/args.h>", "#include <cstddef>", *lines])
    unit = jit.CompileUnit(name="layout", kind="test", sources={"layout.cpp": source}, include_dirs=jit.include_dirs())
    return ctypes.CDLL(str(jit.build(unit).path))


@pytest.mark.parametrize("name", TYPES)
def test_layout(offsets, name):
    mirror = getattr(abi, name)
    fields = [field for field, _ in mirror._fields_]
    given = list((ctypes.c_long * (len(fields) + 1)).in_dll(offsets, f"{name}_layout"))
    assert given == [ctypes.sizeof(mirror), *(getattr(mirror, field).offset for field in fields)]
