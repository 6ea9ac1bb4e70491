"""The `sinks` variant."""

from attnloom import hookimpl
from attnloom.variant import TensorParam, Variant

SINKS = Variant(
    name="sinks",
    struct="Sinks",
    header="sinks.h",
    functors={"row_init"},
    use_softmax=True,
    params=[TensorParam("sinks", shape=("num_qo_heads",), doc="The logit of each head's sink; -inf: none.")],
    reference="attnloom_sinks.reference:Sinks",
    doc="One more logit in every row's softmax, learned a head, that has no value: gpt-oss.",
)


@hookimpl
def attnloom_variants():
    """Attention sinks."""
    return [SINKS]
