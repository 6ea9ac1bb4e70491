"""The hook of attnloom-tree-attention."""

from attnloom import hookimpl
from attnloom.index import StorageFormat

TREE_ATTENTION = StorageFormat(
    name="tree_attention",
    builder="attnloom_tree_attention.build:build_index",
    example="attnloom_tree_attention.example:example",
    doc="Needs block_tables and, for each request, parents of its draft tokens (or choices, one tree for all).",
)


@hookimpl
def attnloom_storage_formats():
    """The one format of this package."""
    return [TREE_ATTENTION]
