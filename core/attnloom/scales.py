"""Scales of quantised keys and values, as a kernel reads them."""

from __future__ import annotations

from attnloom.errors import RunError

NO_SCALES = (0, 0, 0, 0)
"""Address and stride of the k scale and of the v scale where there is neither."""

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


class Scale:
    """The k or the v scale of a run on an engine: keeps alive what the kernel is pointed to."""

    def __init__(self, name: str, num_kv_heads: int, engine):
        self.name = name
        self.num_kv_heads = num_kv_heads
        self._engine = engine
        self._tensor = None

    def place(self, value) -> tuple[int, int]:
        """`(address, stride in elements)` of a number or a float32 tensor `[1]` or `[num_kv_heads]`; of none: zeros.

        Raises:
            RunError: anything else.
        """
        if value is None:
            return 0, 0
        if isinstance(value, (int, float)):
            if not abs(value) <= _FLOAT32_MAX:
                raise RunError(f"{self.name}_scale must be a finite float32, got {value!r}")
            return self._engine.constant(float(value)), 0
        if not hasattr(value, "data_ptr"):
            raise RunError(f"{self.name}_scale must be a number or a float32 tensor, got {value!r}")
        if str(value.dtype) != "torch.float32" or value.device != self._engine.device:
            raise RunError(
                f"{self.name}_scale is {value.dtype} on {value.device}, it must be float32 on {self._engine.device}"
            )
        if value.numel() not in (1, self.num_kv_heads) or value.dim() > 1:
            raise RunError(
                f"{self.name}_scale has shape {list(value.shape)}, it must be [1] or [{self.num_kv_heads}] (kv heads)"
            )
        self._tensor = value
        per_head = value.numel() > 1
        return value.data_ptr(), value.stride(0) if per_head else 0
