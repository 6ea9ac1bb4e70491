"""What the core itself provides, through the hooks that every plugin uses: `causal`, `dense` and `auto`."""

from __future__ import annotations

from attnloom.hookspecs import hookimpl
from attnloom.index import StorageFormat
from attnloom.tile import TileHeuristic
from attnloom.variant import Variant

CAUSAL = Variant(
    name="causal",
    struct="attnloom::variants::Causal",
    header="include/attnloom/variants/causal.h",
    functors={"kv_range"},
    reference="attnloom.reference_variants:Causal",
    doc="A query sees the keys at its own position and before.",
)

DENSE = StorageFormat(
    name="dense",
    builder="attnloom.dense:build_index",
    example="attnloom.dense:example",
    doc="Contiguous keys and values, request after request; needs nothing more.",
)

AUTO = TileHeuristic(
    name="auto",
    choose="attnloom.tile_auto:choose",
    doc="The core's own rule, from the target, the dtype and the head dimension.",
)


@hookimpl
def attnloom_variants():
    """The causal mask."""
    return [CAUSAL]


@hookimpl
def attnloom_storage_formats():
    """The dense format."""
    return [DENSE]


@hookimpl
def attnloom_tile_heuristics():
    """The core's tile rule."""
    return [AUTO]
