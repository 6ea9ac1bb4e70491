"""KV-cache pages addressed by a block table, padded or ragged."""

__all__ = ["PagePool", "Sequence"]


def __getattr__(name: str):
    if name in __all__:
        from attnloom import pages

        return getattr(pages, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
