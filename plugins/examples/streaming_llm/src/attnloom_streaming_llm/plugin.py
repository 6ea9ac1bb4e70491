"""The `streaming_llm` variant."""

from attnloom import hookimpl
from attnloom.errors import ParamError
from attnloom.variant import Param, Variant

STREAMING_LLM = Variant(
    name="streaming_llm",
    struct="attnloom_streaming_llm::StreamingLLM",
    header="streaming_llm.h",
    functors={"kv_range"},
    params=[
        Param("sinks", int, default=4, doc="First positions that every later query sees."),
        Param("window", int, default=1020, doc="Latest positions that a query sees, its own included."),
    ],
    check="attnloom_streaming_llm.plugin:check",
    abi=1,
    reference="attnloom_streaming_llm.reference:StreamingLLM",
    doc="The first `sinks` positions and the last `window`, causal: StreamingLLM (arXiv:2309.17453).",
)


def check(spec, params) -> None:
    """Raise `ParamError` for what means nothing."""
    if params["sinks"] < 0 or params["window"] < 1:
        raise ParamError(
            f"streaming_llm.sinks must be at least 0 and streaming_llm.window at least 1, got {params['sinks']} and "
            f"{params['window']}"
        )


@hookimpl
def attnloom_variants():
    """Attention sinks and a window."""
    return [STREAMING_LLM]
