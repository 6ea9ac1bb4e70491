"""A radix tree of shared prefixes over KV-cache pages."""

__all__ = ["RadixTree", "Sequence"]


def __getattr__(name: str):
    if name in __all__:
        from attnloom_radix_tree import tree

        return getattr(tree, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
