"""Host arrays of an index: conversion to the dtypes that kernels read, with every contradiction named.

Storage formats use these too. Imports numpy, so it is itself imported only when an index is built.
"""

from __future__ import annotations

import numpy as np

from attnloom.errors import IndexFormatError

INT32_MAX = 2**31 - 1
I32, I64, U32 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint32)
_NORMAL = {"i4": {(I32, (4,))}, "i8": {(I64, (8,))}, "u4": {(U32, (4,))}, "pages": {(I32, (4,)), (I64, (8,))}}


def is_tensor(value) -> bool:
    """Whether `value` is a torch tensor (or quacks like one), told without importing torch."""
    return hasattr(value, "data_ptr") and hasattr(value, "stride")


def as_host_array(value, what: str):
    """`value` (numpy, list, tuple, CPU tensor) as a numpy array, without a copy where there need be none.

    Raises:
        IndexFormatError: for data that numpy cannot hold or that lives on a device.
    """
    if isinstance(value, np.ndarray):
        return value
    if is_tensor(value):
        if value.device.type != "cpu":
            raise IndexFormatError(f"{what} is on {value.device}; the planner reads it, so pass it from the host")
        return value.detach().numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise IndexFormatError(f"{what} is no array of integers: {error}") from error
    return array.astype(np.int64) if array.size == 0 and array.dtype == np.float64 else array


def as_integers(value, what: str, dtype=I32, ndim: int | None = 1):
    """`value` as a contiguous host array of `dtype`, itself if it is one already.

    Raises:
        IndexFormatError: for floats and booleans, a wrong number of dimensions, or a value that `dtype` cannot hold.
    """
    array = value if type(value) is np.ndarray else as_host_array(value, what)
    if ndim is not None and array.ndim != ndim:
        raise IndexFormatError(f"{what} has {array.ndim} dimension(s) {array.shape}, expected {ndim}")
    if array.dtype is dtype:
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    if array.dtype.kind not in "iu":
        raise IndexFormatError(f"{what} has dtype {array.dtype}, expected integers")
    if array.dtype != dtype and array.size:
        limits = np.iinfo(dtype)
        least, most = int(array.min()), int(array.max())
        if least < limits.min or most > limits.max:
            raise IndexFormatError(f"{what} holds {least if least < limits.min else most}, which {dtype} cannot hold")
    return np.ascontiguousarray(array, dtype=dtype)


def normalize(instance, kinds: dict[str, str]) -> None:
    """Turns the attributes of a frozen `instance` into the arrays that kernels read; none stays none.

    Args:
        kinds: for each attribute `"i4"`, `"i8"`, `"u4"` (contiguous, one dimension) or `"pages"`.
    """
    for name, kind in kinds.items():
        value = getattr(instance, name)
        if value is None:
            continue
        if type(value) is np.ndarray and (value.dtype, value.strides) in _NORMAL[kind]:
            continue
        what = f"{type(instance).__name__}.{name}"
        array = page_ids(value, what) if kind == "pages" else as_integers(value, what, np.dtype(kind))
        object.__setattr__(instance, name, array)


def page_ids(value, what: str = "indices"):
    """`value` as page ids: a tensor stays where it is, anything else becomes a numpy array of int32 or int64.

    Raises:
        IndexFormatError: for other dtypes than int32 and int64 that cannot be widened to one of them.
    """
    if type(value) is np.ndarray and value.dtype.char in "il" and value.dtype.isnative:
        return value
    if is_tensor(value):
        if str(value.dtype).removeprefix("torch.") not in ("int32", "int64"):
            raise IndexFormatError(f"{what} has dtype {value.dtype}, expected int32 or int64")
        return value
    array = as_host_array(value, what)
    if array.dtype.kind not in "iu":
        raise IndexFormatError(f"{what} has dtype {array.dtype}, expected int32 or int64")
    small = array.dtype == np.int32 or (array.dtype.itemsize < 4)
    return as_integers(array, what, I32 if small else I64, ndim=None)


def offsets(lengths, what: str):
    """i32[B + 1] offsets of ragged `lengths` (i32[B], not negative).

    Raises:
        IndexFormatError: where the sum passes int32.
    """
    if largest(lengths) * len(lengths) > INT32_MAX and (total := int(lengths.sum(dtype=np.int64))) > INT32_MAX:
        raise IndexFormatError(f"the sum of {what} is {total}, more than int32 holds")
    indptr = np.zeros(len(lengths) + 1, np.int32)
    np.add.accumulate(lengths, out=indptr[1:])
    return indptr


def largest(values) -> int:
    """The largest of 1-d `values`, 0 for none. `argmax` is vectorised where a reduction is not."""
    return int(values[values.argmax()]) if len(values) else 0


def batch_lengths(qo_lens, kv_lens):
    """The lengths that every storage format starts from.

    Args:
        qo_lens, kv_lens: host integers, one a request, not negative.

    Returns:
        `(qo_len, kv_len, qo_indptr, token_request)`: i32[B], i32[B], i32[B + 1], i32[T].

    Raises:
        IndexFormatError: for unequal counts, negative lengths, floats, or sums past int32.
    """
    qo_len = as_integers(qo_lens, "qo_lens")
    kv_len = as_integers(kv_lens, "kv_lens")
    requests = len(qo_len)
    if requests != len(kv_len):
        raise IndexFormatError(f"qo_lens has {requests} request(s), kv_lens has {len(kv_len)}")
    if not requests:
        return qo_len, kv_len, np.zeros(1, np.int32), np.zeros(0, np.int32)
    least = qo_len[qo_len.argmin()]
    if least < 0 or kv_len[kv_len.argmin()] < 0:
        what, lens = ("qo_lens", qo_len) if least < 0 else ("kv_lens", kv_len)
        at = int(np.argmax(lens < 0))
        raise IndexFormatError(f"{what}[{at}] is {lens[at]}; a length is at least 0")
    if least == 1 == qo_len[qo_len.argmax()]:
        qo_indptr = np.arange(requests + 1, dtype=np.int32)
        return qo_len, kv_len, qo_indptr, qo_indptr[:-1]
    qo_indptr = offsets(qo_len, "qo_lens")
    return qo_len, kv_len, qo_indptr, np.arange(requests, dtype=np.int32).repeat(qo_len)


def positions(q_pos, tokens: int):
    """`q_pos` as i32[T], or none for none. Raises `IndexFormatError` unless it has one for each of `tokens`."""
    if q_pos is None:
        return None
    q_pos = as_integers(q_pos, "q_pos")
    if len(q_pos) != tokens:
        raise IndexFormatError(f"q_pos has {len(q_pos)} position(s), the batch has {tokens} token(s)")
    return q_pos


def check_page_size(page_size) -> int:
    """`page_size` as an int of at least 1. Raises `IndexFormatError`."""
    if type(page_size) is not int:
        try:
            page_size = page_size.__index__()
        except AttributeError:
            raise IndexFormatError(f"page_size is {page_size!r}, expected an integer") from None
    if not 1 <= page_size <= INT32_MAX:
        raise IndexFormatError(f"page_size is {page_size}; it is at least 1 and fits int32")
    return page_size


def pack_bits(bits):
    """bool[...] (C order) packed to u32 words, LSB first; the last word is padded with zeros."""
    packed = np.packbits(np.ascontiguousarray(bits).reshape(-1), bitorder="little")
    words = np.zeros(-(-packed.size // 4), np.uint32)
    words.view(np.uint8)[: packed.size] = packed
    return words


def unpack_bits(words, begin: int, count: int):
    """bool[count]: bits `begin` to `begin + count` of u32 `words`, LSB first."""
    first, last = begin // 32, -(-(begin + count) // 32)
    bits = np.unpackbits(words[first:last].view(np.uint8), bitorder="little")
    return bits[begin - 32 * first : begin - 32 * first + count].astype(bool)
