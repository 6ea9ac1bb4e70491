"""One forward pass of a packed batch: `[1, tokens]` ids, no padding, K and V in pages.

The step travels from the loop to the attention function as a keyword, `model(..., attnloom_step=step)`. It holds the
index of the batch and the slots of its new tokens; every layer of one kind reuses the plan that the first of them made.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from attrs import Factory, define, field

from attnloom.append import append_kv
from attnloom.errors import RunError, UnsupportedError
from attnloom.index import ComposedIndex
from attnloom.integrations.layers import LayerKind, Override, Positions, describe_layer
from attnloom.wrapper import AttentionWrapper


@define(eq=False)
class LayerCache:
    """K and V of one layer, each `[pages, page_size, kv_heads, head_dim]`, and the wrapper that reads them."""

    k: torch.Tensor
    v: torch.Tensor
    wrapper: AttentionWrapper
    params: dict[str, Any] | None


@define(eq=False)
class PackedCache:
    """The pages of every layer of one model and the wrappers of its layer kinds.

    Attributes:
        num_pages, page_size: of each layer.
        device: where the pages live, `"cpu"` or `"cuda"`.
        override: variants in place of the model's own, or none.
        compile_s: seconds spent building or loading kernels.
        attention_s, append_s: seconds spent in `run` and in writing pages, over all layers.
        plan_us: microseconds of every `plan` call.
    """

    num_pages: int
    page_size: int
    device: str = "cpu"
    override: Override | None = None
    compile_s: float = 0.0
    attention_s: float = 0.0
    append_s: float = 0.0
    plan_us: list[float] = Factory(list)
    layers: dict[int, LayerCache] = field(factory=dict, repr=False)
    wrappers: dict[LayerKind, AttentionWrapper] = field(factory=dict, repr=False)

    def layer(self, module, query, key, value, scaling, keywords) -> LayerCache:
        """The cache of `module`'s layer, made when the layer is first met."""
        found = self.layers.get(module.layer_idx)
        return self._add_layer(module, query, key, value, scaling, keywords) if found is None else found

    def _add_layer(self, module, query, key, value, scaling, keywords) -> LayerCache:
        positions = Positions(causal=_is_causal(module, keywords), window=keywords.get("sliding_window"))
        kind, params = describe_layer(
            query, key, value, scaling=scaling, keywords=keywords, positions=positions, override=self.override
        )
        shape = (self.num_pages, self.page_size, kind.num_kv_heads)
        made = LayerCache(
            k=key.new_empty(*shape, kind.head_dim),
            v=value.new_empty(*shape, kind.head_dim_v),
            wrapper=self._wrapper(kind),
            params=params,
        )
        self.layers[module.layer_idx] = made
        return made

    def _wrapper(self, kind: LayerKind) -> AttentionWrapper:
        if kind not in self.wrappers:
            start = time.perf_counter()
            self.wrappers[kind] = AttentionWrapper(kind.spec(), device=self.device)
            self.compile_s += time.perf_counter() - start
        return self.wrappers[kind]


@define(eq=False)
class PackedStep:
    """What one forward pass needs to know of its batch.

    Attributes:
        cache: the model's pages.
        index: the block-sparse index of the batch, new tokens included.
        slots: int64[tokens], `page * page_size + offset` of each new token.
    """

    cache: PackedCache
    index: ComposedIndex
    slots: torch.Tensor
    _planned: set[int] = field(factory=set, init=False)

    def attend(self, module, query, key, value, scaling, keywords) -> torch.Tensor:
        """Write the new keys and values of a layer, attend, and return `[1, tokens, heads, head_dim_v]`."""
        cache = self.cache
        layer = cache.layer(module, query, key, value, scaling, keywords)
        wrapper = layer.wrapper
        if id(wrapper) not in self._planned:
            self._plan(layer)
        start = time.perf_counter()
        append_kv(key[0].transpose(0, 1), value[0].transpose(0, 1), (layer.k, layer.v), self.slots)
        appended = time.perf_counter()
        out = wrapper.run(query[0].transpose(0, 1), (layer.k, layer.v), params=layer.params)
        done = time.perf_counter()
        cache.append_s += appended - start
        cache.attention_s += done - appended
        return out.unsqueeze(0)

    def _plan(self, layer: LayerCache) -> None:
        start = time.perf_counter()
        layer.wrapper.plan(self.index, params=layer.params)
        self.cache.plan_us.append((time.perf_counter() - start) * 1e6)
        self._planned.add(id(layer.wrapper))


def packed_attention(
    module, query, key, value, attention_mask=None, *, scaling=None, dropout=0.0, attnloom_step=None, **keywords
):
    """The attention function that transformers calls as `attn_implementation="attnloom_packed"`.

    Args:
        query, key, value: `[1, heads, tokens, head_dim]`, the tokens of all requests one after another.
        attnloom_step: the `PackedStep`, given to the model's `forward`.

    Raises:
        RunError: without a step, or with a batch that is not packed.
        UnsupportedError: for a layer that attends in a way no variant was told of.
    """
    if attnloom_step is None:
        raise RunError(
            "attn_implementation='attnloom_packed' takes its batch from model(..., attnloom_step=PackedStep(...)); "
            "for model.generate and padded batches use 'attnloom'"
        )
    if query.shape[0] != 1:
        raise RunError(f"a packed batch has ids of shape [1, tokens], got a batch of {query.shape[0]}")
    if attention_mask is not None:
        raise UnsupportedError("a packed batch takes no attention mask: its index says who sees what")
    if dropout:
        raise UnsupportedError(f"attention dropout {dropout} is not supported; call model.eval()")
    return attnloom_step.attend(module, query, key, value, scaling, keywords), None


def _is_causal(module, keywords) -> bool:
    chunked = getattr(module, "layer_type", None) == "chunked_attention"
    given = keywords.get("is_causal")
    if chunked or not (getattr(module, "is_causal", True) if given is None else given):
        raise UnsupportedError(
            f"{type(module).__name__} is {'chunked' if chunked else 'bidirectional'}; 'attnloom_packed' serves causal "
            "and sliding-window layers, 'attnloom' takes any mask"
        )
    return True
