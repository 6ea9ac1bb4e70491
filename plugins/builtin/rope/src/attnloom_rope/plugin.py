"""The `rope` variant."""

from attnloom import hookimpl
from attnloom.variant import Param, StaticParam, TensorParam, Variant

ROPE = Variant(
    name="rope",
    struct="Rope",
    header="rope.h",
    functors={"query_transform", "key_transform"},
    rotation=True,
    params=[
        StaticParam(
            "interleaved", bool, default=False, doc="Pairs (2i, 2i + 1), GPT-J's; else (i, i + rotary_dim / 2)."
        ),
        StaticParam(
            "rotary_dim",
            int,
            computed="attnloom_rope.frequencies:rotary_dim",
            check="attnloom_rope.frequencies:check_rotary_dim",
            doc="Leading elements of a row that rotate, even; none given: head_dim * partial.",
        ),
        TensorParam(
            "inv_freq",
            shape=("rotary_dim//2",),
            computed="attnloom_rope.frequencies:inv_freq",
            doc="Radians per position of each pair.",
        ),
        Param(
            "scale",
            computed="attnloom_rope.frequencies:scale",
            doc="Factor of sine and cosine, so of the rotated elements alone.",
        ),
        Param("offset", int, default=0, doc="Added to every position."),
        Param("theta", default=10000.0, host_only=True, doc="Base of the frequencies."),
        Param("partial", default=1.0, host_only=True, doc="Share of head_dim that rotates."),
        Param("scaling", str, default="none", host_only=True, doc="none, linear, llama3 or yarn."),
        Param("factor", default=1.0, host_only=True, doc="How many times the trained context is stretched."),
        Param("original_max_position", int, default=8192, host_only=True, doc="Trained context; llama3 and yarn."),
        Param("low_freq_factor", default=1.0, host_only=True, doc="llama3: turns in the trained context, slow end."),
        Param("high_freq_factor", default=4.0, host_only=True, doc="llama3: turns in the trained context, fast end."),
        Param("beta_fast", default=32.0, host_only=True, doc="yarn: pairs with more turns keep their frequency."),
        Param("beta_slow", default=1.0, host_only=True, doc="yarn: pairs with fewer turns are stretched by factor."),
        Param("truncate", bool, default=True, host_only=True, doc="yarn: round the ends of the ramp to whole pairs."),
        Param("mscale", default=None, host_only=True, doc="yarn: DeepSeek's mscale, together with mscale_all_dim."),
        Param("mscale_all_dim", default=None, host_only=True, doc="yarn: DeepSeek's mscale_all_dim."),
    ],
    check="attnloom_rope.frequencies:check",
    reference="attnloom_rope.reference:Rope",
    doc="Rotary position embedding (RoFormer); queries at load, cached un-rotated keys when read.",
)


@hookimpl
def attnloom_variants():
    """Rotary position embedding."""
    return [ROPE]
