"""The `sliding_window` variant."""

from attnloom import hookimpl
from attnloom.errors import ParamError
from attnloom.variant import Param, Variant

SLIDING_WINDOW = Variant(
    name="sliding_window",
    struct="SlidingWindow",
    header="sliding_window.h",
    functors={"kv_range"},
    params=[
        Param("left", int, doc="Older positions that a query sees beside its own; -1: all."),
        Param("right", int, default=-1, doc="Newer positions that a query sees; -1: all."),
    ],
    check="attnloom_sliding_window.plugin:check",
    reference="attnloom_sliding_window.reference:SlidingWindow",
    doc="q_pos - left <= kv_pos <= q_pos + right: the local layers of Mistral, Gemma 2 and 3, and gpt-oss.",
)


def check(spec, params) -> None:
    """Raise `ParamError` for a window that means nothing."""
    for name in ("left", "right"):
        if params[name] < -1:
            raise ParamError(f"sliding_window.{name} must be at least 0, or -1 for no limit, got {params[name]}")


@hookimpl
def attnloom_variants():
    """Sliding windows."""
    return [SLIDING_WINDOW]
