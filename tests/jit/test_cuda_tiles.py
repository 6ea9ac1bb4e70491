"""The core's choice of tiles on CUDA devices: what the registers and the shared memory of each architecture hold."""

from __future__ import annotations

import attnloom
import pytest
from attnloom.errors import UnsupportedError
from attnloom.kernel import describe
from attnloom.limits import Limits
from attnloom.targets import CudaTarget

KIB = {"sm_80": 164, "sm_86": 100, "sm_87": 164, "sm_89": 100, "sm_90a": 228, "sm_120": 100, "sm_121": 100}
"""Shared memory of a multiprocessor."""

TALL = {
    164: {64: (128, 64), 128: (128, 64), 192: (128, 64), 256: (64, 32)},
    100: {64: (128, 64), 128: (64, 64), 192: (128, 32), 256: (32, 32)},
}


def choice(arch, head_dim=128, heads=(32, 8), **fields):
    dims = {"head_dim": head_dim, "head_dim_v": 128 if head_dim == 192 else head_dim}
    limits = Limits(qo_len=fields.pop("max_qo_len", None))
    spec = attnloom.AttentionSpec(["causal"], *heads, dtype="bfloat16", **dims, **fields)
    target = CudaTarget(arch)
    tiles = describe(spec, target, limits)[1]
    return tiles, target.config(spec, tiles)


@pytest.mark.parametrize("arch", KIB)
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_tiles_fit_and_say_why(arch, head_dim):
    tiles, config = choice(arch, head_dim)
    assert tiles.short.t_q == 16 and tiles.by == "auto"
    if KIB[arch] in TALL:
        assert (tiles.tall.t_q, tiles.tall.t_kv) == TALL[KIB[arch]][head_dim]
    assert config.shared_bytes <= config.shared_limit < KIB[arch] * 1024
    assert config.blocks * config.shared_bytes < KIB[arch] * 1024
    told = f"{arch.rstrip('a')}: {config.shared_bytes} of {config.shared_limit} bytes of shared memory"
    assert any(reason.startswith(told) for reason in tiles.why)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_what_was_too_large_is_told(arch):
    tiles, _ = choice(arch, 256)
    too_many_rows, too_many_bytes = (
        [reason for reason in tiles.why if "does not fit" in reason and what in reason]
        for what in ("registers hold 16 rows", "bytes of shared memory; a block of")
    )
    assert too_many_rows and too_many_bytes


@pytest.mark.parametrize("arch", KIB)
def test_no_family_is_told_that_the_device_lacks(arch):
    tiles, _ = choice(arch)
    assert any("wgmma" in reason for reason in tiles.why) == ("wgmma" in CudaTarget(arch).families)


@pytest.mark.parametrize("arch", KIB)
def test_a_query_token_fits_the_short_tile(arch):
    for group, rows in ((1, 16), (16, 16), (17, 32), (40, 64), (128, 128)):
        assert choice(arch, heads=(2 * group, 2))[0].short.t_q >= rows >= group


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_warps_that_copy_for_others_take_no_fp8(kv_dtype):
    tile = attnloom.Tile(128, 128, "wgmma")
    for tiles in (tile, attnloom.TileChoice(short=attnloom.Tile(16, 128, "mma"), tall=tile)):
        with pytest.raises(
            UnsupportedError, match=f"t_kv=128, family='wgmma'.* with kv_dtype {kv_dtype}: .*t_kv of 64"
        ):
            choice("sm_90a", kv_dtype=kv_dtype, tile=tiles)
    tiles, config = choice("sm_90a", kv_dtype=kv_dtype, tile=attnloom.Tile(128, 64, "wgmma"))
    assert (config.copiers, config.warps) == (0, 4)


def test_no_tall_class_where_the_short_one_holds_all():
    tiles, _ = choice("sm_80", max_qo_len=4)
    assert tiles.tall is None and any("no tall class" in reason for reason in tiles.why)
    assert choice("sm_80", max_qo_len=5)[0].tall is not None
