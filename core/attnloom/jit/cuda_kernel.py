"""The CUDA translation unit of one kernel: a composed variant and the sizes it is compiled for."""

from __future__ import annotations

import re

from attrs import field, frozen
from attrs.validators import in_

from attnloom.errors import UnsupportedError
from attnloom.jit.kernel_text import NARROW, TileClasses, kernel_text
from attnloom.tile import Tile

HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256)
"""The head_dim, and head_dim_v, that CUDA kernels are made for."""

T_Q = (16, 32, 64, 128)
"""Packed rows of a tile."""

T_KV = (32, 64, 128)
"""Keys of a tile."""

WGMMA_T_Q, WGMMA_T_KV = 128, (64, 128)
"""The tiles of the family `wgmma`, which takes head dims up to `WGMMA_HEAD_DIM`: of 64 keys, of which two blocks
share a multiprocessor; and of 128, where warps that copy for the others have it to themselves."""

WGMMA_HEAD_DIM = 128

WARPS = 4
"""Warps of a block; where some copy for others, twice as many compute."""

_SLICE = 16
_SMALL = ("86", "89", "120", "121")  # 100 KiB of shared memory a multiprocessor
_MIDDLE = ("80", "87")  # 164 KiB


@frozen(kw_only=True)
class KernelConfig(TileClasses):
    """What is fixed when a CUDA kernel is compiled.

    Attributes:
        dtype: of q: float16 or bfloat16.
        kv_dtype: of the cache: as `dtype`, float8_e4m3fn or float8_e5m2.
        out_dtype: of the output: float16, bfloat16 or float32.
        head_dim: elements of a row of q and K, one of `HEAD_DIMS`.
        head_dim_v: elements of a row of V and O: `head_dim`, or 128 beside 192.
        short: the tile class of few packed rows.
        tall: the tile class of many, or none.
        arch: what it is compiled for, such as `"sm_90a"`; its shared memory decides how deep the pipelines are.
    """

    dtype: str = field(validator=in_(("float16", "bfloat16")))
    kv_dtype: str = field(validator=in_(("float16", "bfloat16", *NARROW)))
    out_dtype: str = field(validator=in_(("float16", "bfloat16", "float32")))
    head_dim: int = field()
    head_dim_v: int = field()
    short: Tile = field()
    tall: Tile | None = field(default=None)
    arch: str = field(default="sm_90a")

    @kv_dtype.validator
    def _same_width(self, _attribute, value):
        if value not in NARROW and value != self.dtype:
            raise UnsupportedError(
                f"kv_dtype {value} beside dtype {self.dtype}: CUDA kernels take a cache of q's dtype or of fp8"
            )

    @head_dim_v.validator
    def _fits(self, _attribute, value):
        pair = (self.head_dim, value)
        if self.head_dim not in HEAD_DIMS or (value != self.head_dim and pair != (192, 128)):
            raise UnsupportedError(
                f"head_dim {self.head_dim} with head_dim_v {value}: CUDA kernels take equal ones of "
                f"{', '.join(map(str, HEAD_DIMS))}, or 192 with 128"
            )

    @short.validator
    @tall.validator
    def _is_cuda_tile(self, _attribute, tile):
        if tile is None:
            return
        if tile.family not in ("mma", "wgmma"):
            raise UnsupportedError(f"{tile} is of the {tile.family} family; CUDA kernels have 'mma' and 'wgmma'")
        if tile.t_q not in T_Q or tile.t_kv not in T_KV:
            raise UnsupportedError(f"{tile}: CUDA kernels have t_q of {T_Q} and t_kv of {T_KV}")

    def __attrs_post_init__(self):
        for tile in self.tile_classes:
            if tile.family == "wgmma":
                self._check_wgmma(tile)
        if self.rows_a_warp > 16 and self.head_dim_v > 128:
            raise UnsupportedError(
                f"a t_q of {max(tile.t_q for tile in self.tile_classes)} at head_dim_v {self.head_dim_v}: a warp's "
                "registers hold 16 rows of that; take a t_q of at most 64"
            )
        if self.shared_bytes > self.shared_limit:
            raise UnsupportedError(
                f"tiles of {self.tile_classes} at head_dim {self.head_dim} need {self.shared_bytes} bytes of shared "
                f"memory; a block of {self.arch} has {self.shared_limit}: take a smaller t_kv or t_q"
            )

    @property
    def rows_a_warp(self) -> int:
        """Packed rows that a warp of the taller class holds."""
        return max(tile.t_q if self._splits_keys(tile) else -(-tile.t_q // self.warps) for tile in self.tile_classes)

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory that the tiles of one block may take."""
        return self._shared_of_processor - self._reserved

    @property
    def copiers(self) -> int:
        """Warps of a block that copy for the others."""
        return WARPS if any(tile.family == "wgmma" and tile.t_kv == WGMMA_T_KV[1] for tile in self.tile_classes) else 0

    @property
    def warps(self) -> int:
        """Warps of a block that compute."""
        return 2 * WARPS if self.copiers else WARPS

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor holds at a time."""
        alone = self.copiers or self._widest > 128
        return 1 if alone or 2 * (self._bytes(2) + self._reserved) > self._shared_of_processor else 2

    @property
    def stages(self) -> int:
        """Slices of keys that a warp of a short class has under way or at hand: as many as fit, up to 4."""
        room = self._shared_of_processor // self.blocks - self._reserved
        return next((n for n in (4, 3, 2) if self._bytes(n) <= room), 1)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that the tiles of a block take; beside warps that copy, without a second place for
        queries, which kernels have where their variant leaves room for it."""
        return self._bytes(self.stages)

    @property
    def _reserved(self) -> int:
        """Bytes of a block's static shared memory and of what the driver keeps for itself; beside warps that copy rows
        stand there three times, for which any variant may take as much as static memory can be."""
        return (49 if self.copiers else 12 if self.kv_dtype in NARROW else 11) * 1024

    @property
    def _shared_of_processor(self) -> int:
        number = re.sub(r"\D", "", self.arch)
        return 1024 * (100 if number in _SMALL else 164 if number in _MIDDLE else 228)

    def _check_wgmma(self, tile: Tile) -> None:
        if self.arch.rstrip("a") != "sm_90":
            raise UnsupportedError(f"{tile} on {self.arch}: the family 'wgmma' runs on sm_90a alone")
        if tile.t_q != WGMMA_T_Q or tile.t_kv not in WGMMA_T_KV or self._widest > WGMMA_HEAD_DIM:
            raise UnsupportedError(
                f"{tile} at head_dim {self.head_dim}: the family 'wgmma' has tiles of {WGMMA_T_Q} x {WGMMA_T_KV[0]} "
                f"and {WGMMA_T_KV[1]}, for a head_dim up to {WGMMA_HEAD_DIM}; take 'mma'"
            )
        if self.copiers and self.kv_dtype in NARROW:
            raise UnsupportedError(
                f"{tile} with kv_dtype {self.kv_dtype}: tiles of {WGMMA_T_KV[1]} keys of the family 'wgmma' take a "
                f"cache of q's dtype; take a t_kv of {WGMMA_T_KV[0]}"
            )

    @property
    def _widest(self) -> int:
        return max(self.head_dim, self.head_dim_v)

    def _splits_keys(self, tile: Tile) -> bool:
        return tile.t_q == 16 or (tile.t_q == 32 and self._widest <= 128)

    def _bytes(self, stages: int) -> int:
        dims = self.head_dim, self.head_dim_v

        def keys_bytes(tile):
            if not self._splits_keys(tile):
                return 2 * tile.t_kv * sum(_row_bytes(dim, tile.family) for dim in dims)
            narrow = self.kv_dtype in NARROW  # a warp takes two slices of them at a time
            keys, widths = (2 * _SLICE, [dim // 2 for dim in dims]) if narrow else (_SLICE, dims)
            stage = keys * sum(_row_bytes(width, tile.family) for width in widths)
            return self.warps * max(stages * stage, tile.t_q * (self.head_dim_v * 4 + 8))

        return max(tile.t_q * _row_bytes(self.head_dim, tile.family) + keys_bytes(tile) for tile in self.tile_classes)


def _row_bytes(elements: int, family: str) -> int:
    """Of a row of 16-bit numbers: 128-byte blocks for `wgmma`, else 16-byte pieces, an odd number unless swizzled."""
    if family == "wgmma":
        return 128 * -(-elements // 64)
    pieces = elements // 8
    return 16 * (pieces if pieces % 8 == 0 else pieces | 1)


def source(composition_source: str, config: KernelConfig) -> str:
    """The text to compile: `composition_source` (it defines `attnloom::generated::Variant`), then the kernel."""
    wgmma = ", ".join(str(tile.family == "wgmma").lower() for tile in config.tile_classes)
    sizes = {name: getattr(config, name) for name in ("warps", "copiers", "stages", "blocks")}
    return kernel_text(
        composition_source,
        config,
        kind="CUDA",
        header="attnloom/cuda/kernel.cuh",
        macro="ATTNLOOM_CUDA_KERNEL",
        info=f", {config.arch}",
        constants=f"  static constexpr int {', '.join(f'{name} = {size}' for name, size in sizes.items())};\n"
        f"  static constexpr bool wgmma[2] = {{{wgmma}}};\n",
    )
