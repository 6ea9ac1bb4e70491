"""The hook of attnloom-page-table."""

from attnloom import hookimpl
from attnloom.index import StorageFormat

PAGE_TABLE = StorageFormat(
    name="page_table",
    builder="attnloom_page_table.build:build_index",
    manager="attnloom.pages:PagePool",
    example="attnloom_page_table.example:example",
    doc="Needs block_tables (padded [requests, max_pages]) or kv_indptr and kv_indices.",
)


@hookimpl
def attnloom_storage_formats():
    """The one format of this package."""
    return [PAGE_TABLE]
