"""A made-up batch for a picture: lengths from the command line, pages dealt out in order."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from attnloom.errors import IndexFormatError, UnsupportedError
from attnloom.resolve import resolve

QoLens = Annotated[str, typer.Option(help="Query tokens of each request: 1,1,17 or 1*8,17 (eight of 1).")]
KvLens = Annotated[str, typer.Option(help="Keys of each request, written likewise.")]
Format = Annotated[str, typer.Option(help="The storage format.")]
PageSize = Annotated[int, typer.Option(help="Slots of a page.", min=1)]
Shared = Annotated[int, typer.Option(help="Tokens at the front of every request that share their pages.", min=0)]
Output = Annotated[
    str, typer.Option("--output", "-o", help="The file: .png, .svg, .pdf or another that matplotlib writes.")
]


def lengths(text: str, option: str) -> list[int]:
    """`[1, 1, 17]` for `"1*2,17"`. Raises `typer.BadParameter`."""
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        length, _, count = part.partition("*")
        try:
            found += [int(length)] * int(count or 1)
        except ValueError:
            raise typer.BadParameter(f"{option} {text!r}: write numbers such as 1,1,17 or 1*8,17") from None
    return found


def index_of_options(storage_format: str, qo_lens: str, kv_lens: str, page_size: int, shared_prefix: int) -> Any:
    """`made_up_index` of the options as they were given. Raises as it does, and `typer.BadParameter`."""
    qo, kv = lengths(qo_lens, "--qo-lens"), lengths(kv_lens, "--kv-lens")
    return made_up_index(storage_format, qo, kv, page_size, shared_prefix)


def made_up_index(name: str, qo_lens: list[int], kv_lens: list[int], page_size: int, shared: int) -> Any:
    """The index of such a batch in the storage format `name`.

    With `shared`, a format that takes `block_tables` gets pages in order, those of the first `shared` tokens the same
    for all; else the format's own example makes up what it needs.

    Raises:
        UnknownNameError: there is no such format. UnsupportedError: it takes no block tables, or has no such example.
        IndexFormatError: the lengths contradict each other.
    """
    import attnloom

    if len(qo_lens) != len(kv_lens):
        raise IndexFormatError(f"--qo-lens has {len(qo_lens)} requests, --kv-lens {len(kv_lens)}: give as many")
    form = attnloom.storage_format(name)
    takes_tables = "block_tables" in inspect.signature(resolve(form.builder)).parameters
    if shared and not takes_tables:
        raise UnsupportedError(f"storage format {name!r} takes no block tables, so --shared-prefix means nothing to it")
    if form.name == "dense":
        return form.build_index(qo_lens, kv_lens, page_size)
    if form.example is None or shared:
        if not takes_tables:
            raise UnsupportedError(f"storage format {name!r} takes no block tables and has no example to draw")
        return form.build_index(qo_lens, kv_lens, page_size, block_tables=block_tables(kv_lens, page_size, shared))
    import numpy as np

    made = resolve(form.example)(np.random.default_rng(0), qo_lens, kv_lens, page_size)
    if made is None:
        raise UnsupportedError(f"the example of storage format {name!r} has no batch of these lengths: give others")
    return form.build_index(qo_lens, kv_lens, page_size, **made[0])


def block_tables(kv_lens: list[int], page_size: int, shared: int) -> Any:
    """i32 `[requests, max_pages]`, pages in order; whole pages of the first `shared` tokens are everyone's."""
    import numpy as np

    common = min([shared, *kv_lens], default=0) // page_size
    pages = [-(-length // page_size) for length in kv_lens]
    tables = np.zeros((len(kv_lens), max(pages, default=0)), np.int32)
    tables[:, :common] = np.arange(common)
    next_page = common
    for row, count in enumerate(pages):
        tables[row, common:count] = np.arange(next_page, next_page + count - common)
        next_page += count - common
    return tables
