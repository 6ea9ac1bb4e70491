"""The `qk_norm` variant."""

import math

from attnloom import hookimpl
from attnloom.errors import ParamError
from attnloom.variant import Param, TensorParam, Variant

QK_NORM = Variant(
    name="qk_norm",
    struct="QkNorm",
    header="qk_norm.h",
    functors={"query_transform", "key_transform"},
    params=[
        TensorParam(
            "q_weight", shape=("head_dim",), computed="attnloom_qk_norm.plugin:ones", doc="Of queries; default 1."
        ),
        TensorParam(
            "k_weight", shape=("head_dim",), computed="attnloom_qk_norm.plugin:ones", doc="Of keys; default 1."
        ),
        Param("eps", default=1e-6, doc="Added to the mean square."),
    ],
    check="attnloom_qk_norm.plugin:check",
    reference="attnloom_qk_norm.reference:QkNorm",
    doc="RMS norm of every query and key over its head's elements: Qwen 3, Gemma 3, OLMo 2. List it before rope.",
)


def ones(spec, params) -> list[float]:
    """The weight that leaves a normalised row as it is."""
    return [1.0] * spec.head_dim


def check(spec, params) -> None:
    """Raise `ParamError` for an eps that could make a root negative."""
    if not params["eps"] >= 0 or math.isinf(params["eps"]):
        raise ParamError(f"qk_norm.eps must be at least 0, got {params['eps']}")


@hookimpl
def attnloom_variants():
    """RMS norm of queries and keys."""
    return [QK_NORM]
