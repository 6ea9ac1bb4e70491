"""The `document_mask` variant."""

from attnloom import hookimpl
from attnloom.variant import TensorParam, Variant

DOCUMENT_MASK = Variant(
    name="document_mask",
    struct="attnloom_document_mask::DocumentMask",
    header="document_mask.h",
    functors={"logits_mask", "kv_range"},
    params=[
        TensorParam("ids", dtype="int32", shape=("*",), doc="The document of each key, request after request."),
        TensorParam("first", dtype="int32", shape=("*",), doc="Position of the first key of each key's document."),
        TensorParam("begin", dtype="int64", shape=("*",), doc="[requests + 1] where each request's keys start in ids."),
    ],
    check="attnloom_document_mask.documents:check",
    example="attnloom_document_mask.documents:example",
    abi=1,
    reference="attnloom_document_mask.reference:DocumentMask",
    doc="Several documents packed in a sequence: a token sees the keys of its own.",
)


@hookimpl
def attnloom_variants():
    """Document masks."""
    return [DOCUMENT_MASK]
