"""The C++ translation unit of one host kernel: a composed variant and the sizes it is compiled for."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import in_

from attnloom.errors import UnsupportedError
from attnloom.tile import Tile

MAX_HEAD_DIM = 1024
"""The largest head_dim and head_dim_v: a thread's scratch grows with them."""

MAX_TILE = 1024
"""The largest t_q and t_kv."""

_CODES = {
    "float32": "kF32",
    "float16": "kF16",
    "bfloat16": "kBF16",
    "float8_e4m3fn": "kE4M3",
    "float8_e5m2": "kE5M2",
}
_Q_DTYPES = ("float32", "float16", "bfloat16")


@frozen(kw_only=True)
class KernelConfig:
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

    dtype: str = field(validator=in_(_Q_DTYPES))
    kv_dtype: str = field(validator=in_(tuple(_CODES)))
    out_dtype: str = field(validator=in_(_Q_DTYPES))
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

    @property
    def tile_classes(self) -> tuple[Tile, Tile]:
        """Tile classes 0 (short) and 1 (tall; the short one again where there is none)."""
        return self.short, self.tall or self.short


def source(composition_source: str, config: KernelConfig) -> str:
    """The text to compile: `composition_source` (it defines `attnloom::generated::Variant`), then the kernel."""
    short, tall = config.tile_classes
    info = (
        f"attnloom host kernel: q {config.dtype}, kv {config.kv_dtype}, out {config.out_dtype}, "
        f"head_dim {config.head_dim}, head_dim_v {config.head_dim_v}, "
        f"tiles {short.t_q}x{short.t_kv} and {tall.t_q}x{tall.t_kv}"
    )
    return f"""{composition_source}
#include <attnloom/host/kernel.h>

namespace attnloom::generated {{
struct Config {{
  static constexpr DType q = {_CODES[config.dtype]}, kv = {_CODES[config.kv_dtype]}, out = {_CODES[config.out_dtype]};
  static constexpr int head_dim = {config.head_dim}, head_dim_v = {config.head_dim_v};
  static constexpr int t_q[2] = {{{short.t_q}, {tall.t_q}}}, t_kv[2] = {{{short.t_kv}, {tall.t_kv}}};
}};
}}  // namespace attnloom::generated

ATTNLOOM_HOST_KERNEL(attnloom::generated::Config, attnloom::generated::Variant, "{info}")
"""
