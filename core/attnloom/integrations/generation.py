"""Greedy generation over packed batches: no padding, shared prefixes computed once, K and V in pages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from attrs import Factory, define, field

from attnloom.errors import UnsupportedError
from attnloom.integrations.layers import LayerKind, Override
from attnloom.integrations.packed import PackedCache, PackedStep
from attnloom.integrations.requests import Request, page_store
from attnloom.integrations.transformers import PACKED, register_transformers
from attnloom.lookup import storage_format
from attnloom.wrapper import AttentionWrapper

MAX_TOKENS_PER_PASS = 4096


@define(eq=False)
class Generation:
    """What a run produced and what it cost.

    Attributes:
        tokens: the new tokens of each request, the end token included.
        seconds, prefill_s: of the whole run; until every request had its first token.
        attention_s, append_s: in attention kernels and in writing pages, all layers.
        decode_attention_s: the part of `attention_s` after the prefill.
        plan_us: of each plan.
        passes: forward passes.
        prompt_tokens, computed_prompt_tokens: given; and computed, the rest being shared.
        pages_used, pages_shared: at the end of the prefill: pages held, and those that several requests hold.
    """

    tokens: list[list[int]] = Factory(list)
    seconds: float = 0.0
    prefill_s: float = 0.0
    attention_s: float = 0.0
    decode_attention_s: float = 0.0
    append_s: float = 0.0
    plan_us: list[float] = Factory(list)
    passes: int = 0
    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    pages_used: int = 0
    pages_shared: int = 0

    @property
    def new_tokens(self) -> int:
        """Tokens produced over all requests."""
        return sum(map(len, self.tokens))

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second, the prefill included."""
        return self.new_tokens / self.seconds if self.seconds else 0.0


@define(eq=False)
class Generator:
    """Generates with one model through attnloom.

    Attributes:
        model: a transformers causal language model in evaluation mode.
        storage_format: `"page_table"` or `"radix_tree"`.
        page_size: tokens of a page.
        override: variants in place of the model's own, or none.
        max_tokens_per_pass: longer prefills take several passes.
        kernels_s: seconds spent building or loading kernels so far.
    """

    model: Any
    storage_format: str = "page_table"
    page_size: int = 16
    override: Override | None = None
    max_tokens_per_pass: int = MAX_TOKENS_PER_PASS
    kernels_s: float = field(default=0.0, init=False)
    _wrappers: dict[LayerKind, AttentionWrapper] = field(factory=dict, init=False)
    _cache: PackedCache | None = field(default=None, init=False)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        end_tokens: Sequence[int] = (),
        on_token: Callable[[int], None] = lambda _count: None,
    ) -> Generation:
        """Continue every prompt greedily.

        Args:
            prompts: token ids, at least one a prompt.
            max_new_tokens: tokens to produce at most for each prompt.
            end_tokens: a request ends with any of these.
            on_token: told after each pass how many tokens it produced.

        Raises:
            UnsupportedError: for an empty prompt, or one that leaves the model's positions too few for the new tokens.
        """
        self._check(prompts, max_new_tokens)
        store = page_store(self.storage_format, prompts, max_new_tokens, self.page_size)
        result = Generation()
        with self._serving(store.num_pages):
            result.prompt_tokens = sum(map(len, prompts))
            start = time.perf_counter()
            requests = [store.admit(prompt) for prompt in prompts]
            result.computed_prompt_tokens = sum(request.pending for request in requests)
            active = requests
            while active:
                produced = self._pass(store, active)
                result.passes += 1
                if not result.prefill_s and all(request.new_tokens for request in requests):
                    result.prefill_s = time.perf_counter() - start
                    result.pages_used, result.pages_shared = store.usage()
                    result.decode_attention_s = -self._cache.attention_s
                active = self._retire(store, active, max_new_tokens, frozenset(end_tokens))
                on_token(produced)
            result.seconds = time.perf_counter() - start
        result.tokens = [request.new_tokens for request in requests]
        result.attention_s, result.append_s = self._cache.attention_s, self._cache.append_s
        result.decode_attention_s += self._cache.attention_s
        result.plan_us = self._cache.plan_us
        return result

    def _check(self, prompts, max_new_tokens: int) -> None:
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if max_new_tokens < 1:
            raise UnsupportedError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        for number, prompt in enumerate(prompts, 1):
            if not len(prompt):
                raise UnsupportedError(f"prompt {number} has no tokens")
            if limit is not None and len(prompt) + max_new_tokens > limit:
                raise UnsupportedError(
                    f"prompt {number} has {len(prompt)} tokens; with {max_new_tokens} new ones it exceeds "
                    f"the model's {limit} positions"
                )

    def prepare(self) -> None:
        """Build or load the kernels of every layer kind, with a pass over one token; else `generate` does."""
        index = storage_format("dense").build_index([1], [1], self.page_size)
        with self._serving(num_pages=1):
            self._forward(index, np.zeros(1, np.int64), [0], [0], [0])

    @property
    def wrappers(self) -> dict[LayerKind, AttentionWrapper]:
        """The wrapper of each layer kind that was met."""
        return self._wrappers

    @contextlib.contextmanager
    def _serving(self, num_pages: int) -> Iterator[None]:
        """The model with new pages and attnloom's attention, without gradients."""
        register_transformers()
        self._cache = PackedCache(
            num_pages, self.page_size, device=self.model.device.type, override=self.override, wrappers=self._wrappers
        )
        with torch.inference_mode(), implementation(self.model, PACKED):
            yield
        self.kernels_s += self._cache.compile_s

    def _pass(self, store, active: list[Request]) -> int:
        """One forward pass over what is pending, oldest first; the number of tokens it produced."""
        budget = self.max_tokens_per_pass
        batch: list[tuple[Request, int]] = []
        for request in active:
            if count := min(request.pending, budget):
                batch.append((request, count))
                budget -= count
        counts = [count for _, count in batch]
        ids = [token for request, count in batch for token in request.pending_tokens(count)]
        positions = [place for request, count in batch for place in range(request.computed, request.computed + count)]
        index, slots = store.step([request for request, _ in batch], counts)
        ends = np.cumsum(counts) - 1
        finished = [row for row, (request, count) in enumerate(batch) if request.pending == count]
        logits = self._forward(index, slots, ids, positions, [int(ends[row]) for row in finished])
        for request, count in batch:
            request.computed += count
        for row, token in zip(finished, logits.argmax(-1).tolist(), strict=True):
            batch[row][0].append(token)
        return len(finished)

    def _forward(self, index, slots, ids, positions, wanted) -> torch.Tensor:
        """The logits `[len(wanted), vocabulary]` of the tokens at the places `wanted`."""
        device = self.model.device
        step = PackedStep(self._cache, index, torch.as_tensor(slots, device=device))
        return self.model(
            input_ids=torch.tensor([ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, dtype=torch.long, device=device),
            attnloom_step=step,
        ).logits[0]

    def _retire(self, store, active, max_new_tokens: int, end_tokens: frozenset[int]) -> list[Request]:
        remaining = []
        for request in active:
            new = request.new_tokens
            if len(new) >= max_new_tokens or (new and new[-1] in end_tokens):
                store.release(request)
            else:
                remaining.append(request)
        return remaining


@contextlib.contextmanager
def implementation(model, name: str) -> Iterator[None]:
    """`model` with another attention implementation, for the duration of a block."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
