"""`attnloom plot mask`: which keys each query sees, and what logits become."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from attnloom.cli.plot_batch import Output
from attnloom.errors import CompositionError
from attnloom.resolve import resolve
from attnloom.variant import Variant


def register(group: typer.Typer) -> None:
    """Add the command to the group `plot`."""
    group.command("mask")(mask)


def mask(
    variants: Annotated[
        list[str], typer.Argument(help="Variants, alias=name, or module:function of a score_mod or mask_mod.")
    ],
    qo_len: Annotated[int, typer.Option(help="Queries.", min=1)] = 48,
    kv_len: Annotated[int, typer.Option(help="Keys.", min=1)] = 48,
    head: Annotated[int, typer.Option(help="The query head.", min=0)] = 0,
    num_qo_heads: Annotated[int, typer.Option(help="Heads of q.", min=1)] = 4,
    tile: Annotated[str, typer.Option(help="Queries x keys of the tiles that are outlined.")] = "8x8",
    logit: Annotated[float, typer.Option(help="The logit that is transformed.")] = 0.0,
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter: --param sliding_window.left=8 (may repeat).")
    ] = None,
    output: Output = "mask.png",
) -> None:
    """Draw which keys each query sees under some variants, and what they make of a logit."""
    if head >= num_qo_heads:
        raise typer.BadParameter(
            f"--head {head}: of {num_qo_heads} query heads (--num-qo-heads) the last is {num_qo_heads - 1}"
        )
    import attnloom
    from attnloom.cli.computation import parameter
    from attnloom.plots import save
    from attnloom.plots.mask import plot_mask

    spec = attnloom.AttentionSpec(
        variants=[member(name) for name in variants],
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_qo_heads,
        head_dim=64,
        dtype="float32",
        params=dict(map(parameter, param or [])),
    )
    rows, columns = _tile(tile)
    title = ", ".join(name.rpartition(":")[2] for name in variants)
    figure = plot_mask(spec, qo_len, kv_len, head=head, tile=(rows, columns), logit=logit, title=title)
    typer.echo(save(figure, output))


def member(name: str) -> str | Variant:
    """A variant by name, or made of the mod that `"module:function"` names: a mask_mod takes four arguments.

    Raises:
        CompositionError: there is no such function, or it is none.
    """
    if ":" not in name:
        return name
    try:
        function = resolve(name)
        taken = inspect.signature(function).parameters.values()
        count = sum(argument.kind is not argument.KEYWORD_ONLY for argument in taken)
    except ImportError as error:
        raise CompositionError(
            f"{name!r} cannot be imported: {error}. Modules of this folder are found with PYTHONPATH=. in front"
        ) from error
    except (AttributeError, TypeError) as error:
        raise CompositionError(f"{name!r} is no score_mod or mask_mod: {error}") from error
    mods = {"score_mod": function} if count > 4 else {"mask_mod": function}
    from attnloom.mods.captures import identifier

    return Variant.from_mods(identifier(name.rpartition(":")[2]), **mods)


def _tile(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise typer.BadParameter(f"--tile {text!r}: write queries x keys, such as 16x64")
    return int(rows), int(columns)
