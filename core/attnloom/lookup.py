"""What the installed plugins provide, by name, from the process-wide plugin set."""

from __future__ import annotations

from attnloom.errors import UnknownNameError
from attnloom.index import StorageFormat


def storage_format(name: str) -> StorageFormat:
    """The storage format called `name` (`"dense"`, `"page_table"`, ...), a stateless object that all callers share.

    Raises:
        UnknownNameError: no plugin provides it; the message has near names, and the cause where a plugin that
            would have provided it failed.
    """
    if not isinstance(name, str):
        raise UnknownNameError(f"a storage format is asked for by its name, got {name!r}")
    from attnloom.plugins import PluginSet

    return PluginSet.default().storage_format(name)
