"""The hook of attnloom-radix-tree."""

from attnloom import hookimpl
from attnloom.index import StorageFormat

RADIX_TREE = StorageFormat(
    name="radix_tree",
    builder="attnloom_radix_tree.build:build_index",
    manager="attnloom_radix_tree:RadixTree",
    example="attnloom_radix_tree.example:example",
    doc="Needs block_tables (padded [requests, max_pages], on the host) or sequences of a RadixTree.",
)


@hookimpl
def attnloom_storage_formats():
    """The one format of this package."""
    return [RADIX_TREE]
