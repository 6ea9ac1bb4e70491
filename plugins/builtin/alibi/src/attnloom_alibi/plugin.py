"""The `alibi` variant."""

from attnloom import hookimpl
from attnloom.variant import TensorParam, Variant

ALIBI = Variant(
    name="alibi",
    struct="Alibi",
    header="alibi.h",
    functors={"logits_transform"},
    params=[
        TensorParam(
            "slopes",
            shape=("num_qo_heads",),
            computed="attnloom_alibi.slopes:head_slopes",
            doc="Logit per position of distance, a head; none given: the paper's geometric series.",
        )
    ],
    reference="attnloom_alibi.reference:Alibi",
    doc="logit + slope * (kv_pos - q_pos), attention with linear biases (arXiv:2108.12409); BLOOM, MPT, Falcon-RW.",
)


@hookimpl
def attnloom_variants():
    """Attention with linear biases."""
    return [ALIBI]
