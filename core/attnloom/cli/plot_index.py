"""`attnloom plot index`: the blocks of a batch, level by level."""

from __future__ import annotations

import typer

from attnloom.cli.plot_batch import Format, KvLens, Output, PageSize, QoLens, Shared, index_of_options


def register(group: typer.Typer) -> None:
    """Add the command to the group `plot`."""
    group.command("index")(index)


def index(
    qo_lens: QoLens = "1*6,5",
    kv_lens: KvLens = "70,85,90,64,100,77,81",
    storage_format: Format = "radix_tree",
    page_size: PageSize = 8,
    shared_prefix: Shared = 48,
    output: Output = "index.png",
) -> None:
    """Draw which query tokens read which pages, level by level."""
    from attnloom.plots import save
    from attnloom.plots.index import plot_index

    made = index_of_options(storage_format, qo_lens, kv_lens, page_size, shared_prefix)
    typer.echo(save(plot_index(made, title=f"{storage_format} index"), output))
