"""The `sigmoid` variant."""

from attnloom import hookimpl
from attnloom.variant import Param, Variant

SIGMOID = Variant(
    name="sigmoid",
    struct="Sigmoid",
    header="sigmoid.h",
    functors={"logits_transform"},
    use_softmax=False,
    params=[
        Param("scale", default=1.0, doc="Factor of the logit."),
        Param("bias", default=0.0, doc="Added to the logit; the paper trains with -ln(context length)."),
    ],
    reference="attnloom_sigmoid.reference:Sigmoid",
    doc="sigmoid(scale * logit + bias) is the weight, without softmax: FlashSigmoid (arXiv:2409.04431).",
)


@hookimpl
def attnloom_variants():
    """Sigmoid attention."""
    return [SIGMOID]
