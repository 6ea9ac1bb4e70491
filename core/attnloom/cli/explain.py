"""`attnloom explain`: who supplies what of a computation, and what it is compiled to."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the subcommand to the `attnloom` command."""
    app.command("explain")(explain)


def explain(
    variants: Annotated[
        str, typer.Option(help="Names, comma-separated, in order; alias=name gives an alias.")
    ] = "causal",
    stack: Annotated[str | None, typer.Option(help="A stack of the configuration, in place of --variants.")] = None,
    num_qo_heads: Annotated[int, typer.Option(help="Heads of q and out.")] = 32,
    num_kv_heads: Annotated[int, typer.Option(help="Heads of k and v.")] = 8,
    head_dim: Annotated[int, typer.Option(help="Elements of a row of q and k.")] = 128,
    head_dim_v: Annotated[
        int | None, typer.Option(help="Elements of a row of v and out, where they are others.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of q and out: float32, float16 or bfloat16.")] = "bfloat16",
    kv_dtype: Annotated[str | None, typer.Option(help="Of the cache: as q, float8_e4m3fn or float8_e5m2.")] = None,
    param: Annotated[list[str] | None, typer.Option(help="A parameter: --param soft_cap.cap=30 (may repeat).")] = None,
    tile: Annotated[str, typer.Option(help="The name of a tile heuristic.")] = "auto",
    arch: Annotated[str | None, typer.Option(help="A CUDA architecture such as sm_90a, in place of this host.")] = None,
    qo_len: Annotated[int, typer.Option(help="Query tokens of the request whose intervals are shown.", min=0)] = 1,
    kv_len: Annotated[int, typer.Option(help="Its keys.", min=0)] = 4096,
    compile: Annotated[bool, typer.Option(help="Find or compile the kernel.")] = True,
    source: Annotated[bool, typer.Option(help="Print the generated C++ too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print data for programs.")] = False,
) -> None:
    """Who supplied each functor, the order, the parameters, why this tile, and where the generated source is."""
    import attnloom
    from attnloom.cli.computation import parameter, spec_of

    fields = {
        "num_qo_heads": num_qo_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "params": dict(map(parameter, param or [])),
        "tile": tile,
    }
    found = attnloom.explain(spec_of(variants, stack, fields), arch=arch, compile=compile, qo_len=qo_len, kv_len=kv_len)
    if as_json:
        typer.echo(json.dumps(found.data, indent=2, default=str))
        return
    typer.echo(str(found))
    if source:
        typer.echo("\n" + found.data["kernel"]["source"])
