"""Appending to a cache on a CUDA device: one kernel for K and V, which waits for nothing and may be captured."""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int32, c_int64, c_void_p
from pathlib import Path

import torch

import attnloom
from attnloom.dtypes import CODES, dtype_name
from attnloom.engines.cuda import raw_stream
from attnloom.errors import RunError


class Part(ctypes.Structure):
    """Mirror of `Part` in csrc/append.cu."""

    _fields_ = (
        ("rows", c_void_p),
        ("rows_token", c_int64),
        ("rows_head", c_int64),
        ("cache", c_void_p),
        ("cache_page", c_int64),
        ("cache_slot", c_int64),
        ("cache_head", c_int64),
        ("scale", c_void_p),
        ("scale_stride", c_int32),
        ("rows_dtype", c_int32),
        ("cache_dtype", c_int32),
        ("dim", c_int32),
    )


class AppendArgs(ctypes.Structure):
    """Mirror of `AppendArgs` in csrc/append.cu."""

    _fields_ = (
        ("parts", Part * 2),
        ("slots", c_void_p),
        ("capacity", c_int64),
        ("slots_are_64", c_int32),
        ("tokens", c_int32),
        ("heads", c_int32),
        ("page_size", c_int32),
    )


def append(pairs, slots) -> None:
    """Queue the writing of rows into their slots.

    Args:
        pairs: `(rows, cache, scale or none)` of K and of V, all on one CUDA device; scales are float32, one or one a
            kv head.
        slots: int32 or int64 `[tokens]` on the device; a negative one skips its token, one past the end stops the
            device with an error that names it.

    Raises:
        RunError: a cache whose elements are not contiguous. UnsupportedError: a dtype that no kernel converts.
        RuntimeError: an error of CUDA.
    """
    device = slots.device
    args = AppendArgs(
        slots=slots.data_ptr(),
        slots_are_64=slots.dtype == torch.int64,
        tokens=len(slots),
        heads=pairs[0][1].shape[2],
        page_size=pairs[0][1].shape[1],
        capacity=pairs[0][1].shape[0] * pairs[0][1].shape[1],
    )
    kept = []
    for part, (rows, cache, scale) in zip(args.parts, pairs, strict=True):
        if rows.dtype == torch.float64:
            rows = rows.float()
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        if cache.stride(-1) != 1:
            raise RunError(f"the cache has strides {cache.stride()}, the last must be 1")
        part.rows, part.rows_token, part.rows_head = rows.data_ptr(), rows.stride(0), rows.stride(1)
        part.cache, part.dim = cache.data_ptr(), cache.shape[3]
        part.cache_page, part.cache_slot, part.cache_head = cache.stride()[:3]
        part.rows_dtype, part.cache_dtype = CODES[dtype_name(rows.dtype)], CODES[dtype_name(cache.dtype)]
        if scale is not None:
            part.scale, part.scale_stride = scale.data_ptr(), int(scale.numel() > 1)
        kept += [rows, scale]
    with torch.cuda.device(device):
        status = _function(device)(ctypes.byref(args), raw_stream(device.index))
    if status:
        raise RuntimeError(f"append_kv failed on {device}: CUDA error {status}")


def unit():
    """What is compiled, once an architecture."""
    from attnloom import jit
    from attnloom.jit.launcher import CORE_INCLUDE

    source = Path(attnloom.__file__).parent / "csrc" / "append.cu"
    return jit.CompileUnit(
        name="append",
        kind="append",
        sources={"append.cu": source.read_text(encoding="utf-8")},
        include_dirs=[CORE_INCLUDE],
    )


@functools.cache
def _function(device):
    from attnloom import jit
    from attnloom.targets import target_of

    target, wanted = target_of(device), unit()
    artifact = target.shipped(wanted) or jit.build(wanted, target.toolchain(False))
    function = ctypes.CDLL(str(artifact.path)).attnloom_append
    function.argtypes, function.restype = (c_void_p, c_void_p), ctypes.c_int
    return function
