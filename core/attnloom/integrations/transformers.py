"""attnloom as an attention implementation of Hugging Face transformers.

from attnloom.integrations.transformers import PagedCache, register_transformers

register_transformers()
model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attnloom")
model.generate(**inputs, cache=PagedCache())
"""

from __future__ import annotations

from transformers import AttentionInterface, AttentionMaskInterface

from attnloom.integrations.cache import PagedCache
from attnloom.integrations.masks import PaddedMask, padded_mask
from attnloom.integrations.packed import PackedCache, PackedStep, packed_attention
from attnloom.integrations.padded import padded_attention

__all__ = ["PackedCache", "PackedStep", "PaddedMask", "PagedCache", "register_transformers"]

PADDED = "attnloom"
PACKED = "attnloom_packed"


def register_transformers() -> None:
    """Make two attention implementations known to transformers. Safe to repeat.

    `"attnloom"` takes padded batches with any cache: `model(...)`, `model.generate`, beam search. `"attnloom_packed"`
    takes `[1, tokens]` packed batches whose pages and plan travel as `attnloom_step`; it registers no mask function, so
    no mask is built for it and no device is waited for.
    """
    AttentionInterface.register(PADDED, padded_attention)
    AttentionMaskInterface.register(PADDED, padded_mask)
    AttentionInterface.register(PACKED, packed_attention)
