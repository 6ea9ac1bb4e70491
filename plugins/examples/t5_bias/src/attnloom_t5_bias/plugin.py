"""The `t5_bias` variant."""

from attnloom import hookimpl
from attnloom.variant import Param, TensorParam, Variant

T5_BIAS = Variant(
    name="t5_bias",
    struct="attnloom_t5_bias::T5Bias",
    header="t5_bias.h",
    functors={"logits_transform"},
    params=[
        TensorParam("bias", shape=("*", "num_qo_heads"), doc="Logit of each bucket and head: relative_attention_bias."),
        TensorParam(
            "buckets",
            dtype="int32",
            shape=("*",),
            computed="attnloom_t5_bias.buckets:table",
            doc="Bucket of each distance kv_pos - q_pos from -max_distance to max_distance.",
        ),
        Param("num_buckets", int, default=32, host_only=True, doc="Rows of bias."),
        Param("max_distance", int, default=128, host_only=True, doc="Positions from which all share the last bucket."),
        Param("bidirectional", bool, default=False, host_only=True, doc="True in encoders: newer keys have half."),
    ],
    check="attnloom_t5_bias.buckets:check",
    example="attnloom_t5_bias.buckets:example",
    abi=1,
    reference="attnloom_t5_bias.reference:T5Bias",
    doc="logit + bias[bucket(kv_pos - q_pos), head], the relative position bias of T5 (arXiv:1910.10683).",
)


@hookimpl
def attnloom_variants():
    """T5's relative position bias."""
    return [T5_BIAS]
