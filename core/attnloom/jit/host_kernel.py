"""The C++ translation unit of one host kernel: a composed variant and the sizes it is compiled for."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import in_

from attnloom.dtypes import COMPUTE_DTYPES
from attnloom.errors import UnsupportedError
from attnloom.jit.kernel_text import NARROW, TileClasses, kernel_text
from attnloom.tile import Tile

MAX_HEAD_DIM = 1024
"""The largest head_dim and head_dim_v: a thread's scratch grows with them."""

MAX_TILE = 1024
"""The largest t_q and t_kv."""


@frozen(kw_only=True)
class KernelConfig(TileClasses):
    """What is fixed when a host kernel is compiled.

    Attributes:
        dtype: of q, one of float32, float16, bfloat16.
        kv_dtype: of the cache: those, float8_e4m3fn or float8_e5m2.
        out_dtype: of the output, as `dtype`.
        head_dim: elements of a row of q and K, 1 to `MAX_HEAD_DIM`.
        head_dim_v: elements of a row of V and O.
        short: the tile class of few packed rows.
        tall: the tile class of many, or none.
    """

    dtype: str = field(validator=in_(COMPUTE_DTYPES))
    kv_dtype: str = field(validator=in_((*COMPUTE_DTYPES, *NARROW)))
    out_dtype: str = field(validator=in_(COMPUTE_DTYPES))
    head_dim: int = field()
    head_dim_v: int = field()
    short: Tile = field()
    tall: Tile | None = field(default=None)

    @head_dim.validator
    @head_dim_v.validator
    def _fits(self, attribute, value):
        if not 1 <= value <= MAX_HEAD_DIM:
            raise UnsupportedError(f"{attribute.name} is {value}; host kernels take 1 to {MAX_HEAD_DIM}")

    @short.validator
    @tall.validator
    def _is_host_tile(self, _attribute, tile):
        if tile is None:
            return
        if tile.family != "host":
            raise UnsupportedError(f"{tile} is of the {tile.family} family; a host kernel needs tiles of 'host'")
        if max(tile.t_q, tile.t_kv) > MAX_TILE:
            raise UnsupportedError(f"{tile} is too large: t_q and t_kv of host kernels are at most {MAX_TILE}")


def source(composition_source: str, config: KernelConfig) -> str:
    """The text to compile: `composition_source` (it defines `attnloom::generated::Variant`), then the kernel."""
    return kernel_text(
        composition_source, config, kind="host", header="attnloom/host/kernel.h", macro="ATTNLOOM_HOST_KERNEL"
    )
