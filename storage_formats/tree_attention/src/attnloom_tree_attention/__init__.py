"""Speculation trees: Medusa and EAGLE drafts, one tree a request."""

__all__ = ["parents_of_choices"]


def __getattr__(name: str):
    if name in __all__:
        from attnloom_tree_attention import trees

        return getattr(trees, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
