"""The `hash_block` storage format."""

from attnloom import hookimpl
from attnloom.index import StorageFormat

HASH_BLOCK = StorageFormat(
    name="hash_block",
    builder="attnloom_hash_block.build:build_index",
    manager="attnloom_hash_block.manager:HashBlocks",
    example="attnloom_hash_block.example:example",
    doc="Needs hashes (of each request's full blocks), blocks (hash -> page), tails (page of the last block).",
)


@hookimpl
def attnloom_storage_formats():
    """The hash-block format."""
    return [HASH_BLOCK]
