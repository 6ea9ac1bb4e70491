"""A tensor parameter: a torch or numpy array kept alive, with the pointer and strides that a kernel reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen

from attnloom.address import address_of
from attnloom.errors import ParamError


@frozen(eq=False)
class ParamTensor:
    """One array: `owner` keeps it alive; `strides` are in elements."""

    owner: Any
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def numpy(self) -> np.ndarray:
        """The values as a numpy array on the host (bfloat16 as float32); waits for the device if they lie on one."""
        if isinstance(self.owner, np.ndarray):
            return self.owner
        owner = self.owner.detach().cpu()
        return owner.float().numpy() if str(owner.dtype) == "torch.bfloat16" else owner.numpy()

    def write(self, ref) -> None:
        """Fill a ctypes `TensorRef`."""
        ref.data = self.pointer
        if self.shape:
            ref.shape[:] = self.shape
            ref.stride[:] = self.strides

    @property
    def on_host(self) -> bool:
        """Whether the planner can read it."""
        return isinstance(self.owner, np.ndarray) or self.owner.device.type == "cpu"


def as_param_tensor(key: str, value: Any, dtype: str, device: str) -> ParamTensor:
    """`value` as a tensor parameter of `dtype` on `device`. Arrays must have both already; lists are converted.

    Raises:
        ParamError: another dtype or device, or something that is no array of numbers.
    """
    if _is_torch(value):
        return _from_torch(key, value, dtype, device)
    if not isinstance(value, np.ndarray):
        value = _from_list(key, value, dtype)
    if str(value.dtype) != dtype:
        raise ParamError(
            f"parameter {key!r} has dtype {value.dtype}, expected {dtype}; use .astype(numpy.{_numpy(dtype)})"
        )
    if _kind(device) != "cpu":
        import torch

        return _from_torch(key, torch.from_numpy(np.ascontiguousarray(value)).to(device), dtype, device)
    if any(stride % value.itemsize for stride in value.strides):
        value = value.copy()
    strides = tuple(stride // value.itemsize for stride in value.strides)
    return ParamTensor(value, value.ctypes.data, value.shape, strides)


def _from_torch(key: str, value, dtype: str, device: str) -> ParamTensor:
    found = str(value.dtype).removeprefix("torch.")
    if found != dtype:
        raise ParamError(f"parameter {key!r} has dtype {found}, expected {dtype}; use .to(torch.{dtype})")
    if value.device.type != _kind(device) or (":" in device and str(value.device) != device):
        raise ParamError(f"parameter {key!r} is on {value.device}, expected {device}; use .to({device!r})")
    address = address_of(value, f"parameter {key!r}", ParamError)
    return ParamTensor(value, address, tuple(value.shape), tuple(value.stride()))


def _from_list(key: str, value: Any, dtype: str) -> np.ndarray:
    try:
        array = np.asarray(value)
        fits = array.size == 0 or np.can_cast(array.dtype, dtype, "same_kind") or _holds(array, dtype)
        converted = array.astype(dtype) if fits and array.dtype != object else None
    except (TypeError, ValueError, OverflowError):
        converted = None
    if converted is None:
        raise ParamError(f"parameter {key!r} must be a tensor of {dtype} or a nested list of numbers, got {value!r}")
    return converted


def _holds(array: np.ndarray, dtype: str) -> bool:
    """Whether integers that numpy made int64 fit an unsigned dtype."""
    if array.dtype.kind not in "iu" or np.dtype(dtype).kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    return limits.min <= int(array.min()) and int(array.max()) <= limits.max


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" or (
        hasattr(value, "data_ptr") and hasattr(value, "stride")
    )


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _numpy(dtype: str) -> str:
    return "bool_" if dtype == "bool" else dtype
