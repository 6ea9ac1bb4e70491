"""A transformers `Cache` whose keys and values live in pages.

    model.set_attn_implementation("attnloom")
    model.generate(**inputs, cache=PagedCache())

The pages of request `b` are `b`, `batch + b`, `2 * batch + b`, ...: growing the cache appends pages and moves none.
"""

from __future__ import annotations

import numpy as np
import torch
from attrs import define, frozen
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from attnloom.append import append_kv
from attnloom.errors import UnsupportedError

PAGES_KEYWORD = "attnloom_pages"


@frozen(eq=False)
class Pages:
    """What the attention function reads: k, v `[pages, page_size, kv_heads, head_dim]`, block_table i32[batch, n]."""

    k: torch.Tensor
    v: torch.Tensor
    block_table: np.ndarray

    @property
    def page_size(self) -> int:
        """Slots of a page."""
        return self.k.shape[1]


def dense_pages(key: torch.Tensor, value: torch.Tensor) -> Pages:
    """A dense `[batch, kv_heads, keys, head_dim]` pair as one page a request, without a copy."""
    table = np.arange(key.shape[0], dtype=np.int32)[:, None]
    return Pages(_rows_last(key).transpose(1, 2), _rows_last(value).transpose(1, 2), table)


def _rows_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@define(eq=False)
class _Table:
    """The slots of one batch, shared by the layers: they all write the same positions."""

    batch: int
    page_size: int

    def block_table(self, length: int) -> np.ndarray:
        """i32[batch, pages]: the pages that hold `length` tokens of each request."""
        pages = -(-length // self.page_size)
        return np.arange(pages, dtype=np.int32)[None, :] * self.batch + np.arange(self.batch, dtype=np.int32)[:, None]

    def slots(self, begin: int, end: int) -> torch.Tensor:
        """int64[batch * (end - begin)]: where tokens `begin..end` of each request go."""
        position = np.arange(begin, end, dtype=np.int64)[None, :]
        page = position // self.page_size * self.batch + np.arange(self.batch, dtype=np.int64)[:, None]
        return torch.from_numpy((page * self.page_size + position % self.page_size).reshape(-1))


class PagedLayer(CacheLayerMixin):
    """The pages of one layer. Keys and values are written once and never moved."""

    is_compileable = False
    is_sliding = False

    def __init__(self, page_size: int = 16):
        super().__init__()
        self.page_size = page_size
        self.length = 0
        self.table: _Table | None = None

    @property
    def batch_size(self) -> int:
        """Requests; -1 before the first update."""
        return -1 if self.table is None else self.table.batch

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take batch, heads, dims, dtype and device from the first states, `[batch, kv_heads, tokens, head_dim]`."""
        batch, kv_heads = key_states.shape[:2]
        self.table = _Table(batch, self.page_size)
        self.keys = key_states.new_empty(0, self.page_size, kv_heads, key_states.shape[-1])
        self.values = value_states.new_empty(0, self.page_size, kv_heads, value_states.shape[-1])
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def write(self, key_states: torch.Tensor, value_states: torch.Tensor) -> Pages:
        """Append the states to every request and return the pages that hold all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        batch, _, tokens, _ = key_states.shape
        if batch != self.table.batch:
            raise UnsupportedError(f"the cache holds {self.table.batch} requests, got keys of {batch}")
        begin, self.length = self.length, self.length + tokens
        table = self.table.block_table(self.length)
        self._reserve(table.size)
        slots = self.table.slots(begin, self.length).to(self.device)
        rows = (states.transpose(1, 2).flatten(0, 1) for states in (key_states, value_states))
        append_kv(*rows, (self.keys, self.values), slots)
        return Pages(self.keys, self.values, table)

    def update(self, key_states, value_states, *args, kwargs=None):
        """Write the states; the pages travel on to the attention function in `kwargs`."""
        if kwargs is None:
            raise UnsupportedError(
                "PagedCache hands its pages to the attention function through the keywords of the layer's call; "
                f"this model's cache.update passes none (arguments: {args})"
            )
        kwargs[PAGES_KEYWORD] = self.write(key_states, value_states)
        return key_states, value_states

    def _reserve(self, pages: int) -> None:
        held = self.keys.shape[0]
        if pages > held:
            extra = max(pages - held, held)
            self.keys = torch.cat((self.keys, self.keys.new_empty(extra, *self.keys.shape[1:])))
            self.values = torch.cat((self.values, self.values.new_empty(extra, *self.values.shape[1:])))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys after the coming update, position of the first)."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens held of each request, padding included."""
        return self.length

    def get_max_length(self) -> int:
        """-1: the cache grows."""
        return -1

    def reset(self) -> None:
        """Forget every token; the pages are kept."""
        self.length = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens of every request."""
        self.length = max(self.length - tokens_to_remove, 0)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Request `b` becomes a copy of request `beam_idx[b]`."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the requests `indices`, in that order."""
        self._rearrange(lambda pages: pages.index_select(1, indices.to(pages.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each request becomes `repeats` equal ones, side by side."""
        self._rearrange(lambda pages: pages.repeat_interleave(repeats, dim=1))

    def _rearrange(self, change) -> None:
        if not self.is_initialized:
            return
        columns = self.keys.shape[0] // self.table.batch
        held = columns * self.table.batch
        keys = change(self.keys[:held].unflatten(0, (columns, self.table.batch)))
        values = change(self.values[:held].unflatten(0, (columns, self.table.batch)))
        self.table = _Table(keys.shape[1], self.page_size)
        self.keys, self.values = keys.flatten(0, 1), values.flatten(0, 1)


class PagedCache(Cache):
    """A growing cache of pages, read by `attn_implementation="attnloom"` and by no other.

    Args:
        page_size: slots of a page.
    """

    def __init__(self, page_size: int = 16):
        if page_size < 1:
            raise UnsupportedError(f"page_size must be at least 1, got {page_size}")
        super().__init__(layer_class_to_replicate=lambda: PagedLayer(page_size))

    def update(self, key_states, value_states, layer_idx: int, *args, kwargs=None):
        """Write `[batch, kv_heads, tokens, head_dim]` states into a layer's pages; returns them unchanged."""
        while len(self.layers) <= layer_idx:
            self.layers.append(self.layer_class_to_replicate())
        return self.layers[layer_idx].update(key_states, value_states, *args, kwargs=kwargs)
