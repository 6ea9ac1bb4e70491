"""Scales of quantised keys and values, as a kernel reads them."""

from __future__ import annotations

from numbers import Real

from attnloom.address import address_of
from attnloom.errors import RunError

UNSCALED = (0, 1.0, 0)
"""The `abi.Scale` of values that are used as they lie in the cache."""

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


def scale_of(name: str, value, num_kv_heads: int, device) -> tuple[int, float, int]:
    """The fields of an `abi.Scale`: the address of a tensor's values or 0, a number, and the elements from one head's
    value to the next (0: one for all). The caller keeps a tensor alive.

    Args:
        name: `"k_scale"` or `"v_scale"`.
        value: a number, a float32 tensor `[1]` or `[num_kv_heads]` on `device`, or none.
        num_kv_heads, device: of the wrapper.

    Raises:
        RunError: anything else.
    """
    if value is None:
        return UNSCALED
    if not isinstance(value, (int, float)) and not hasattr(value, "data_ptr"):
        if not isinstance(value, Real):
            raise RunError(f"{name} must be a number or a float32 tensor, got {value!r}")
        value = float(value)
    if isinstance(value, (int, float)):
        if not abs(value) <= _FLOAT32_MAX:
            raise RunError(f"{name} must be a finite float32, got {value!r}")
        return 0, float(value), 0
    if str(value.dtype) != "torch.float32" or value.device != device:
        raise RunError(f"{name} is {value.dtype} on {value.device}, it must be float32 on {device}")
    if value.numel() not in (1, num_kv_heads) or value.dim() > 1:
        raise RunError(f"{name} has shape {list(value.shape)}, it must be [1] or [{num_kv_heads}] (kv heads)")
    return address_of(value, name, RunError), 1.0, value.stride(0) if value.numel() > 1 else 0
