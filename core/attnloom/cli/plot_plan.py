"""`attnloom plot plan`: the queues of each worker and their balance."""

from __future__ import annotations

from typing import Annotated

import typer

from attnloom.cli.plot_batch import Format, KvLens, Output, PageSize, QoLens, Shared, index_of_options


def register(group: typer.Typer) -> None:
    """Add the command to the group `plot`."""
    group.command("plan")(plan)


def plan(
    qo_lens: QoLens = "1*12,64,200",
    kv_lens: KvLens = "900,120,4000,300,310,80,1500,2200,640,90,700,2500,64,1200",
    storage_format: Format = "page_table",
    page_size: PageSize = 16,
    shared_prefix: Shared = 0,
    variants: Annotated[str, typer.Option(help="Names, comma-separated, in order.")] = "causal",
    num_qo_heads: Annotated[int, typer.Option(help="Heads of q and out.")] = 8,
    num_kv_heads: Annotated[int, typer.Option(help="Heads of k and v.")] = 2,
    head_dim: Annotated[int, typer.Option(help="Elements of a row of q and k.")] = 64,
    dtype: Annotated[str, typer.Option(help="Of q and the cache.")] = "float32",
    workers: Annotated[int, typer.Option(help="Queues that the plan is cut into.", min=1)] = 16,
    output: Output = "plan.png",
) -> None:
    """Draw what each worker does, one item after the other, and how even it is. Compiles the kernel if need be."""
    import attnloom
    from attnloom.cli.computation import variant_names
    from attnloom.plots import new_figure, save
    from attnloom.plots.plan import plot_plan

    new_figure(1, 1)
    spec = attnloom.AttentionSpec(
        variants=variant_names(variants),
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
    )
    made = index_of_options(storage_format, qo_lens, kv_lens, page_size, shared_prefix)
    attn = attnloom.AttentionWrapper(spec, num_workers=workers)
    attn.plan(made)
    title = (
        f"plan of {', '.join(spec.variants) or 'no variants'}, {num_qo_heads}/{num_kv_heads} heads, {storage_format}"
    )
    typer.echo(save(plot_plan(attn, title=title), output))
