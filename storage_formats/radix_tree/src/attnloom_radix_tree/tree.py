"""`RadixTree`: the pages of past and present sequences, found again by their tokens.

The tree compares tokens and shares whole pages: two sequences share as many pages as their equal leading tokens fill. A
partial last page is shared only with forks, and copied before either side writes to it.
"""

from __future__ import annotations

import heapq

import numpy as np
from attnloom import pages as paging
from attnloom.errors import CacheFullError
from attnloom.index_arrays import I64, as_integers
from attrs import define, field


@define(eq=False)
class Sequence(paging.Sequence):
    """A sequence under way. Made and changed by its `RadixTree` only.

    Attributes:
        tokens: all its token ids.
        cached: tokens at the front whose keys and values were in the cache when it was inserted or forked: the caller
            computes the rest.
    """

    tokens: list[int] = field(factory=list)
    cached: int = 0


@define(eq=False)
class _Node:
    """A run of whole pages that follows `parent`'s. Children differ in their first page."""

    parent: _Node | None
    tokens: np.ndarray
    pages: list[int]
    used: int
    children: dict[bytes, _Node] = field(factory=dict)


class RadixTree:
    """Shares the leading pages of sequences with equal leading tokens, and keeps them when the sequences are gone.

    It holds no keys and values: `insert` and `append` say which slots (`page * page_size + offset`) to write. A page
    is held by each sequence that reads it and by the tree; only pages that the tree alone holds are evicted, least
    recently used first, from the ends of branches, when free pages run out.
    """

    def __init__(self, num_pages: int, page_size: int):
        self.pool = paging.PagePool(num_pages, page_size)
        self._root = _Node(None, np.zeros(0, np.int64), [], 0)
        self._clock = 0
        self._leaves: list[tuple[int, int, _Node]] = []
        self._notes = 0

    @property
    def page_size(self) -> int:
        """Slots of a page."""
        return self.pool.page_size

    @property
    def num_pages(self) -> int:
        """Pages of the cache."""
        return self.pool.num_pages

    @property
    def num_free(self) -> int:
        """Pages that hold nothing."""
        return self.pool.num_free

    @property
    def num_cached(self) -> int:
        """Pages that the tree alone holds and would evict."""
        return sum(self.pool.holders(page) == 1 for node in self._nodes() for page in node.pages)

    @property
    def num_used(self) -> int:
        """Pages that a sequence holds."""
        return self.pool.num_used - self.num_cached

    @property
    def num_shared(self) -> int:
        """Pages that more than one sequence holds."""
        in_tree = {page for node in self._nodes() for page in node.pages}
        return sum(self.pool.holders(page) - (page in in_tree) > 1 for page in range(self.num_pages))

    def match(self, tokens) -> int:
        """How many tokens at the front of `tokens` the tree holds: a multiple of the page size. Changes nothing."""
        return self._find(_token_array(tokens))[1] * self.page_size

    def insert(self, tokens) -> Sequence:
        """A sequence of `tokens`, on the pages the tree has for its front and new ones for the rest.

        At least the last token is left to compute, so `cached` is at most `len(tokens) - 1`, rounded down to whole
        pages. The new whole pages can be found at once by sequences inserted next, before their keys and values are
        written: the caller writes those of `tokens[cached:]` (to `slots(sequence, sequence.cached)`) before or in the
        same step as anything that reads them. If that fails, `free(sequence, keep=False)`.

        Raises:
            CacheFullError: too few pages are free or can be evicted; no sequence was made.
        """
        tokens = _token_array(tokens)
        path, found = self._find(tokens[: max(len(tokens) - 1, 0)])
        node = self._touch(path, found)
        cached, whole = found * self.page_size, len(tokens) // self.page_size
        sequence = Sequence(
            length=cached,
            pages=[page for at in path for page in at.pages],
            tokens=tokens[:cached].tolist(),
            cached=cached,
            pool=self.pool,
        )
        self.pool.hold(sequence.pages)
        try:
            self.append(sequence, tokens[cached:])
        except CacheFullError:
            self.pool.drop(sequence.pages)
            raise
        self._adopt(node, tokens[cached : whole * self.page_size], sequence.pages[found:whole])
        return sequence

    def append(self, sequence: Sequence, tokens):
        """Appends `tokens` to the sequence.

        Returns:
            i64[len(tokens)] cache slots to write their keys and values to.

        Raises:
            CacheFullError: too few pages are free or can be evicted; the sequence is as before.
        """
        tokens = _token_array(tokens)
        needed = self.pool.pages_needed(sequence, len(tokens))
        if needed > self.num_free:
            self.evict(needed - self.num_free)
        slots = self.pool.append(sequence, len(tokens))
        sequence.tokens.extend(tokens.tolist())
        return slots

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same tokens and pages. A partial last page is copied on the next append."""
        copy = self.pool.fork(sequence)
        return Sequence(copy.length, copy.pages, list(sequence.tokens), sequence.length, pool=self.pool)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Drops the tokens from `length` on (rejected drafts)."""
        self.pool.truncate(sequence, length)
        del sequence.tokens[length:]
        sequence.cached = min(sequence.cached, length)

    def free(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Ends a sequence; it is empty afterwards.

        Args:
            keep: leave its whole pages in the tree for later sequences. False: its keys and values past `cached` were
                not all written, so they are taken out of the tree again unless another sequence reads them.
        """
        self.pool.require_own(sequence)
        tokens = _token_array(sequence.tokens)
        path, found = self._find(tokens)
        if keep:
            whole = sequence.length // self.page_size
            rest = tokens[found * self.page_size : whole * self.page_size]
            self._adopt(self._touch(path, found), rest, sequence.pages[found:whole])
            self.truncate(sequence, 0)
        else:
            own = set(sequence.pages[sequence.cached // self.page_size :])
            self.truncate(sequence, 0)
            self._forget(path, found, own)

    def evict(self, pages: int) -> int:
        """Frees up to `pages` pages that the tree alone holds, least recently used first; returns how many it freed."""
        freed, kept = 0, []
        while self._leaves and freed < pages:
            used, _, node = heapq.heappop(self._leaves)
            if used == node.used and node.pages and not node.children:
                freed += self._trim(node, pages - freed)
                kept += [node] if node.pages else []
        for node in kept:
            self._note_leaf(node)
        return freed

    def take_copies(self):
        """i64[n, 2] pages `(from, to)` to copy before the next write, as `PagePool.take_copies`."""
        return self.pool.take_copies()

    def slots(self, sequence: Sequence, begin: int = 0, end: int | None = None):
        """i64[end - begin] cache slots of the tokens `[begin, end)`."""
        return self.pool.slots(sequence, begin, end)

    def block_tables(self, sequences):
        """i32[len(sequences), longest] page ids, padded with 0."""
        return self.pool.block_tables(sequences)

    def kv_lens(self, sequences):
        """i32[len(sequences)] tokens of each sequence."""
        return self.pool.kv_lens(sequences)

    def _find(self, tokens) -> tuple[list[_Node], int]:
        """The branch that holds the front of `tokens`, and how many whole pages of it are equal.

        The last node may be equal in its first pages only.
        """
        path, node, begin = [], self._root, 0
        while (node := node.children.get(self._key(tokens[begin:]))) is not None:
            path.append(node)
            common = min(len(node.tokens), len(tokens) - begin)
            differs = node.tokens[:common] != tokens[begin : begin + common]
            equal = int(differs.argmax()) if differs.any() else common
            begin += equal // self.page_size * self.page_size
            if equal < len(node.tokens):
                break
        return path, begin // self.page_size

    def _touch(self, path: list[_Node], found: int) -> _Node:
        """Marks a branch as just used and ends it after `found` pages, splitting its last node; returns that node."""
        self._clock += 1
        if path and (excess := sum(len(node.pages) for node in path) - found):
            path[-1] = self._split(path[-1], len(path[-1].pages) - excess)
        for node in path:
            node.used = self._clock
        node = path[-1] if path else self._root
        self._note_leaf(node)
        return node

    def _split(self, node: _Node, pages: int) -> _Node:
        """Cuts `node` after `pages` pages; returns the new upper part."""
        cut = pages * self.page_size
        upper = _Node(node.parent, node.tokens[:cut], node.pages[:pages], node.used)
        node.parent.children[self._key(upper.tokens)] = upper
        node.parent, node.tokens, node.pages = upper, node.tokens[cut:], node.pages[pages:]
        upper.children[self._key(node.tokens)] = node
        return upper

    def _adopt(self, node: _Node, tokens, pages: list[int]) -> None:
        """Lets the tree hold `pages` below `node`, unless a page of the same tokens is there already."""
        if pages and (key := self._key(tokens)) not in node.children:
            node.children[key] = _Node(node, tokens.copy(), pages, self._clock)
            self._note_leaf(node.children[key])
            self.pool.hold(pages)

    def _forget(self, path: list[_Node], found: int, own: set[int]) -> None:
        """Takes pages of `own` that nobody else holds off the end of a branch."""
        if sum(len(node.pages) for node in path) != found:
            return
        for node in reversed(path):
            theirs = next((at for at, page in enumerate(reversed(node.pages)) if page not in own), len(node.pages))
            self._trim(node, 0 if node.children else theirs)
            if node.pages:
                return

    def _trim(self, node: _Node, pages: int) -> int:
        """Frees up to `pages` pages at the end of a leaf that the tree alone holds, and the leaf if none is left."""
        first_key, count = self._key(node.tokens), len(node.pages)
        while node.pages and count - len(node.pages) < pages and self.pool.holders(node.pages[-1]) == 1:
            self.pool.drop([node.pages.pop()])
        node.tokens = node.tokens[: len(node.pages) * self.page_size]
        if not node.pages:
            del node.parent.children[first_key]
            self._note_leaf(node.parent)
        return count - len(node.pages)

    def _note_leaf(self, node: _Node) -> None:
        """Queues a leaf for eviction by its last use. Notes that no longer hold are skipped when they come up."""
        if node.children or node is self._root:
            return
        if len(self._leaves) > 64 + 2 * self.num_pages:
            self._leaves = [note for note in self._leaves if note[0] == note[2].used and note[2].pages]
            heapq.heapify(self._leaves)
        self._notes += 1
        heapq.heappush(self._leaves, (node.used, self._notes, node))

    def _nodes(self):
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def _key(self, tokens) -> bytes | None:
        """What a child is found by: its first page's tokens; none for less than a page."""
        return tokens[: self.page_size].tobytes() if len(tokens) >= self.page_size else None


def _token_array(tokens):
    """Token ids as i64[n]."""
    return as_integers(tokens, "tokens", I64)
