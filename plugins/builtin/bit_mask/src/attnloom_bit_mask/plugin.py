"""The `bit_mask` variant."""

from attnloom import hookimpl
from attnloom.variant import TensorParam, Variant

BIT_MASK = Variant(
    name="bit_mask",
    struct="BitMask",
    header="bit_mask.h",
    functors={"logits_mask"},
    params=[
        TensorParam("bits", dtype="uint32", shape=("*",), doc="Masks of all requests, least significant bit first."),
        TensorParam(
            "begin", dtype="int64", shape=("*",), doc="[requests + 1] first word of each request's mask in bits."
        ),
    ],
    check="attnloom_bit_mask.packing:check",
    example="attnloom_bit_mask.packing:example",
    reference="attnloom_bit_mask.reference:BitMask",
    doc="A packed custom mask: bit q_index * kv_len + kv_index of a request's mask keeps the pair.",
)


@hookimpl
def attnloom_variants():
    """Custom masks."""
    return [BIT_MASK]
