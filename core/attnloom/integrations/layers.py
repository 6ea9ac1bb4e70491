"""What one attention layer of a transformers model computes, in attnloom's words.

transformers hands its attention functions the layer's peculiarities as keywords (`softcap`, `sliding_window`, `s_aux`);
here they become variants and parameters. A keyword that is not known and not none is an error: ignoring one computes
another model.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from attnloom.errors import UnsupportedError
from attnloom.spec import AttentionSpec

_WITHOUT_EFFECT = frozenset(
    {
        "cache",
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "is_causal",
        "labels",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


@frozen
class LayerKind:
    """Everything that decides a layer's kernel and plan; layers of one kind share a wrapper.

    Attributes:
        variants: names, in order.
        params: `(key, value)` of their scalar parameters.
        num_qo_heads, num_kv_heads, head_dim, head_dim_v, dtype, sm_scale: as in `AttentionSpec`.
    """

    variants: tuple[str, ...]
    params: tuple[tuple[str, Any], ...]
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: str = field(converter=lambda dtype: str(dtype).removeprefix("torch."))
    sm_scale: float

    def spec(self) -> AttentionSpec:
        """The `AttentionSpec` of the layer."""
        return AttentionSpec(
            variants=list(self.variants),
            params=dict(self.params),
            num_qo_heads=self.num_qo_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            dtype=self.dtype,
            sm_scale=self.sm_scale,
        )


@frozen
class Positions:
    """Which keys a layer's queries see by position alone: `causal`, and `window` keys, the token itself included."""

    causal: bool = True
    window: int | None = None


@frozen
class Override:
    """Variants that take the place of the model's own in every layer, with their parameters."""

    variants: tuple[str, ...] = field(converter=tuple)
    params: tuple[tuple[str, Any], ...] = field(
        converter=lambda params: tuple(sorted(dict(params).items())), default=()
    )


def describe_layer(
    query,
    key,
    value,
    *,
    scaling: float | None,
    keywords: dict[str, Any],
    positions: Positions,
    override: Override | None,
) -> tuple[LayerKind, dict[str, Any] | None]:
    """The kind of a layer and the parameters that are its own (none, or the tensors that `run` takes).

    Args:
        query, key, value: as transformers passes them, `[batch, heads, tokens, head_dim]`.
        scaling: the factor of `q . k`; none: `1 / sqrt(head_dim)`.
        keywords: what else transformers passed.
        positions: what a mask or the packed batch says of causality and window.
        override: variants of the user's choice.

    Raises:
        UnsupportedError: for a keyword that changes the result in a way that no installed variant was told of.
    """
    known = {"softcap", "s_aux", "sliding_window", *_WITHOUT_EFFECT}
    if unknown := sorted(name for name, given in keywords.items() if name not in known and given is not None):
        raise UnsupportedError(
            f"the model passes {', '.join(unknown)} to its attention, which attnloom does not map to a variant; "
            "use another attn_implementation for this model"
        )
    own: dict[str, Any] = {}
    if override is not None:
        variants, params = list(override.variants), dict(override.params)
    else:
        variants, params = _own_variants(positions, keywords.get("softcap"))
        if (sinks := keywords.get("s_aux")) is not None:
            variants.append("sinks")
            own["sinks.sinks"] = sinks.detach().float().contiguous()
    head_dim = query.shape[-1]
    kind = LayerKind(
        variants=tuple(variants),
        params=tuple(sorted(params.items())),
        num_qo_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=head_dim,
        head_dim_v=value.shape[-1],
        dtype=query.dtype,
        sm_scale=head_dim**-0.5 if scaling is None else float(scaling),
    )
    return kind, own or None


def _own_variants(positions: Positions, softcap: float | None) -> tuple[list[str], dict[str, Any]]:
    variants, params = [], {}
    if positions.causal:
        variants.append("causal")
    if positions.window is not None:
        variants.append("sliding_window")
        params["sliding_window.left"] = positions.window - 1
    if softcap is not None:
        variants.append("soft_cap")
        params["soft_cap.cap"] = float(softcap)
    return variants, params
