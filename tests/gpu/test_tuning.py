"""Tiles measured on the device: what is kept is what a kernel is then made with."""

from __future__ import annotations

import attnloom
import torch
from attnloom import tile_table, tuning
from attnloom.jit import cuda_kernel
from attnloom.tuning import Batch


def test_the_fastest_tiles_are_kept_and_used(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_kernel, "T_Q", (16, 64, 128))
    monkeypatch.setattr(cuda_kernel, "T_KV", (64,))
    spec = bench.spec("causal", head_dim=64, tile="auto")
    found = tuning.tune(spec, bench.device, [Batch("decode", 4, 500), Batch("prefill", 2, 200)], repeats=3)
    faults = [one.fault for one in found.candidates if one.fault]
    assert len(found.candidates) >= 3 and not faults
    times = [us for one in found.candidates for us in one.microseconds.values()]
    assert len(times) == 2 * len(found.candidates) and all(1 < us < 1e5 for us in times)
    assert found.entry.problem["device_name"] == torch.cuda.get_device_name(bench.device)
    monkeypatch.setenv(tile_table.VARIABLE, str(tmp_path / "tiles.json"))
    tile_table.add(tile_table.table_path(), found.entry)
    tiles = attnloom.AttentionWrapper(spec, bench.device, max_kv_len=501).kernel.tiles
    assert (tiles.short, tiles.tall) == (found.entry.short, found.entry.tall)
    assert tiles.why[0].startswith(f"measured on {found.entry.problem['device_name']} on {found.entry.date}")
