"""The requests of a batch and the pages they hold, under either storage format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, field

from attnloom.errors import UnsupportedError
from attnloom.index import ComposedIndex
from attnloom.lookup import storage_format


@define(eq=False)
class Request:
    """One prompt on its way.

    Attributes:
        tokens: the prompt and what was generated.
        prompt_length: tokens of the prompt.
        computed: tokens whose keys and values are in pages, or will be by the time they are read.
        held: what its store knows it by.
    """

    tokens: list[int]
    prompt_length: int
    computed: int = 0
    held: Any = field(default=None, repr=False)

    @property
    def pending(self) -> int:
        """Tokens still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def new_tokens(self) -> list[int]:
        """What was generated."""
        return self.tokens[self.prompt_length :]

    def pending_tokens(self, count: int) -> list[int]:
        """The next `count` tokens to compute."""
        return self.tokens[self.computed : self.computed + count]

    def append(self, token: int) -> None:
        """Take a generated token."""
        self.tokens.append(token)


class _Store:
    """What both stores do: a manager holds pages, a storage format turns its block tables into an index."""

    def __init__(self, manager, format_name: str):
        self.manager = manager
        self.num_pages, self.page_size = manager.num_pages, manager.page_size
        self.format = storage_format(format_name)

    def step(self, requests: list[Request], counts: list[int]) -> tuple[ComposedIndex, np.ndarray]:
        """The index of a pass that computes `counts` tokens of each request, and the slots they are written to."""
        slots, kv_lens = [], []
        for request, count in zip(requests, counts, strict=True):
            end = request.computed + count
            if end > request.held.length:
                self._extend(request, end)
            slots.append(self.manager.slots(request.held, request.computed, end))
            kv_lens.append(end)
        table = self.manager.block_tables([request.held for request in requests])
        index = self.format.build_index(counts, kv_lens, self.page_size, block_tables=table)
        return index, np.concatenate(slots)

    def release(self, request: Request) -> None:
        """Give the request's pages back."""
        self.manager.free(request.held)

    def usage(self) -> tuple[int, int]:
        """Pages that requests hold, and pages that several of them hold."""
        return self.manager.num_used, self.manager.num_shared


class PageTableStore(_Store):
    """Pages from a pool, addressed by a block table; a prompt forks the earlier one that it shares most pages with."""

    def __init__(self, num_pages: int, page_size: int):
        from attnloom_page_table import PagePool

        super().__init__(PagePool(num_pages, page_size), "page_table")
        self._prompts: list[tuple[list[int], Any]] = []

    def admit(self, prompt: Sequence[int]) -> Request:
        """Pages for a prompt. Its last token is always computed: the first new one comes from its logits."""
        prompt = list(prompt)
        found = ((_shared(prompt, other), held) for other, held in self._prompts)
        shared, source = max(found, key=lambda pair: pair[0], default=(0, None))
        shared = min(shared, len(prompt) - 1) // self.page_size * self.page_size
        held = self.manager.new() if source is None else self.manager.fork(source)
        self.manager.truncate(held, shared)
        self.manager.append(held, len(prompt) - shared)
        self._prompts.append((prompt, held))
        return Request(prompt.copy(), len(prompt), computed=shared, held=held)

    def _extend(self, request: Request, end: int) -> None:
        self.manager.append(request.held, end - request.held.length)


class RadixTreeStore(_Store):
    """Pages from a radix tree, which finds shared beginnings by itself, at any depth."""

    def __init__(self, num_pages: int, page_size: int):
        from attnloom_radix_tree import RadixTree

        super().__init__(RadixTree(num_pages, page_size), "radix_tree")

    def admit(self, prompt: Sequence[int]) -> Request:
        """Pages for a prompt. Its last token is always computed: the first new one comes from its logits."""
        held = self.manager.insert(prompt)
        return Request(list(prompt), len(prompt), computed=held.cached, held=held)

    def _extend(self, request: Request, end: int) -> None:
        self.manager.append(request.held, request.tokens[request.held.length : end])


STORES = {"page_table": PageTableStore, "radix_tree": RadixTreeStore}


def page_store(name: str, prompts: Sequence[Sequence[int]], max_new_tokens: int, page_size: int):
    """A store with room for all of `prompts` and what they will generate.

    Raises:
        UnsupportedError: for a storage format that cannot serve here.
    """
    if name not in STORES:
        raise UnsupportedError(f"storage format {name!r} cannot serve generation; use {' or '.join(STORES)}")
    num_pages = sum(-(-(len(prompt) + max_new_tokens) // page_size) for prompt in prompts)
    return STORES[name](num_pages, page_size)


def _shared(a: list[int], b: list[int]) -> int:
    """How many tokens two prompts have in common at their beginning."""
    common = min(len(a), len(b))
    differs = np.not_equal(a[:common], b[:common])
    return int(differs.argmax()) if differs.any() else common
