"""What the translation units of host and CUDA kernels have in common."""

from __future__ import annotations

from attnloom.tile import Tile

NARROW = ("float8_e4m3fn", "float8_e5m2")
"""The dtypes that only a cache has."""

_CODES = {"float32": "kF32", "float16": "kF16", "bfloat16": "kBF16", "float8_e4m3fn": "kE4M3", "float8_e5m2": "kE5M2"}


class TileClasses:
    """A kernel's configuration as far as its `short` and `tall` tiles go."""

    __slots__ = ()

    @property
    def tile_classes(self) -> tuple[Tile, Tile]:
        """Tile classes 0 (short) and 1 (tall; the short one again where there is none)."""
        return self.short, self.tall or self.short


def kernel_text(
    composition_source: str, config, *, kind: str, header: str, macro: str, info: str = "", constants: str = ""
) -> str:
    """The text to compile: `composition_source` (it defines `attnloom::generated::Variant`), then the kernel.

    Args:
        kind: what the kernel's description calls it: host or CUDA.
        header: what defines `macro`, which makes the kernel.
        info: the end of the description.
        constants: a further line of the C++ `Config`.
    """
    short, tall = config.tile_classes
    told = (
        f"attnloom {kind} kernel: q {config.dtype}, kv {config.kv_dtype}, out {config.out_dtype}, "
        f"head_dim {config.head_dim}, head_dim_v {config.head_dim_v}, "
        f"tiles {short.t_q}x{short.t_kv} and {tall.t_q}x{tall.t_kv}{info}"
    )
    return f"""{composition_source}
#include <{header}>

namespace attnloom::generated {{
struct Config {{
  static constexpr DType q = {_CODES[config.dtype]}, kv = {_CODES[config.kv_dtype]}, out = {_CODES[config.out_dtype]};
  static constexpr int head_dim = {config.head_dim}, head_dim_v = {config.head_dim_v};
  static constexpr int t_q[2] = {{{short.t_q}, {tall.t_q}}}, t_kv[2] = {{{short.t_kv}, {tall.t_kv}}};
{constants}}};
}}  // namespace attnloom::generated

{macro}(attnloom::generated::Config, attnloom::generated::Variant, "{told}")
"""
