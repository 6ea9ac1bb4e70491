"""`attnloom tune`: which tiles are the fastest on the device at hand, measured and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the subcommand to the `attnloom` command."""
    app.command("tune")(tune)


def tune(
    variants: Annotated[str, typer.Option(help="In order, with commas, such as causal,soft_cap.")] = "causal",
    stack: Annotated[str, typer.Option(help="A stack of the configuration, in place of --variants.")] = "",
    num_qo_heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 32,
    num_kv_heads: Annotated[int, typer.Option(min=1, help="Key and value heads.")] = 8,
    head_dim: Annotated[int, typer.Option(min=1, help="Elements of a row of q and k.")] = 128,
    head_dim_v: Annotated[int | None, typer.Option(min=1, help="Of a row of v, where it is another.")] = None,
    dtype: Annotated[str, typer.Option(help="Of q and out: float32, float16 or bfloat16.")] = "bfloat16",
    kv_dtype: Annotated[str | None, typer.Option(help="Of the cache: as q, float8_e4m3fn or float8_e5m2.")] = None,
    param: Annotated[list[str] | None, typer.Option(help="A parameter: --param soft_cap.cap=30 (may repeat).")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1; empty: cuda where there is one.")] = "",
    decode: Annotated[
        list[str] | None, typer.Option(help="A batch REQUESTSxKEYS of one query token a request (may repeat).")
    ] = None,
    prefill: Annotated[
        list[str] | None, typer.Option(help="A batch REQUESTSxKEYS whose keys are all queried (may repeat).")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each candidate and batch, in turns.")] = 20,
    output: Annotated[
        Path | None, typer.Option(help="The table; without it, the one that attnloom reads: ATTNLOOM_TILE_TABLE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Measure the tiles that kernels of a computation may have on this device, and keep the fastest in a table.

    Where no batch is named, usual ones are measured. Kernels are compiled first, which takes some minutes for a GPU.
    """
    import torch

    from attnloom.cli.computation import parameter, spec_of
    from attnloom.errors import ConfigError
    from attnloom.tile_table import VARIABLE, add, require_writable, table_path
    from attnloom.tuning import tune

    path = output or table_path()
    if path is None:
        raise ConfigError(f"{VARIABLE} is empty, so that no table is read: name one with --output")
    fields = {
        "num_qo_heads": num_qo_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "params": dict(map(parameter, param or [])),
    }
    spec = spec_of(variants, stack, fields)
    batches = [batch(kind, text) for kind, given in (("decode", decode), ("prefill", prefill)) for text in given or []]
    require_writable(path)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    found = tune(spec, device, batches, repeats=repeats, on_progress=lambda told: typer.echo(told, err=True))
    add(path, found.entry)
    if as_json:
        typer.echo(json.dumps({"table": str(path), **data(found)}, indent=1))
        return
    show(found)
    typer.echo(f"kept in {path}")


def batch(kind: str, text: str):
    """The `Batch` of `"64x4096"`. Raises `typer.BadParameter`."""
    from attnloom.tuning import Batch

    requests, times, keys = text.lower().partition("x")
    if not times or not requests.isdecimal() or not keys.isdecimal() or not int(requests) or not int(keys):
        raise typer.BadParameter(f"{text!r}: write --{kind} REQUESTSxKEYS, such as 16x1024")
    return Batch(kind, int(requests), int(keys))


def data(found) -> dict:
    """A tuning as JSON holds it."""
    from attrs import asdict

    candidates = [{**asdict(one), "tiles": one.tiles.shape, "fastest": one is found.best} for one in found.candidates]
    return {"entry": asdict(found.entry), "candidates": candidates}


def show(found) -> None:
    """A line a candidate, the fastest first."""
    from rich.console import Console
    from rich.table import Table

    rule = found.candidates[0]
    table = Table("tiles", *rule.microseconds, "ratio", title="microseconds, and their ratio to those of the rule")
    right = [one for one in found.candidates if not one.fault]
    for one in sorted(right, key=lambda one: one.share_of(rule)):
        mark = " (rule)" if one is rule else ""
        times = [f"{value:.1f}" for value in one.microseconds.values()]
        style = "bold" if one is found.best else None
        table.add_row(one.tiles.shape + mark, *times, f"{one.share_of(rule):.3f}", style=style)
    for one in found.candidates:
        if one.fault:
            table.add_row(one.tiles.shape, *["-"] * len(rule.microseconds), one.fault)
    Console().print(table)
