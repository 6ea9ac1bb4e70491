"""The `soft_cap` variant."""

from attnloom import hookimpl
from attnloom.errors import ParamError
from attnloom.variant import Param, Variant

SOFT_CAP = Variant(
    name="soft_cap",
    struct="SoftCap",
    header="soft_cap.h",
    functors={"logits_transform"},
    params=[Param("cap", default=50.0, doc="Bound of the logits; Gemma 2 uses 50, Grok-1 30.")],
    check="attnloom_soft_cap.plugin:check",
    reference="attnloom_soft_cap.reference:SoftCap",
    doc="cap * tanh(logit / cap), the logit saturation of Gemma 2 and Grok-1.",
)


def check(spec, params) -> None:
    """Raise `ParamError` for a bound that bounds nothing."""
    if params["cap"] <= 0:
        raise ParamError(f"soft_cap.cap must be positive, got {params['cap']}; leave the variant out for no cap")


@hookimpl
def attnloom_variants():
    """Logit soft-capping."""
    return [SOFT_CAP]
