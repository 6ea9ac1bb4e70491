"""A pool of KV-cache pages: who holds which, reference counts, forks that share. For managers of storage formats."""

from __future__ import annotations

import operator

import numpy as np
from attrs import define, field

from attnloom.errors import CacheFullError, PageError
from attnloom.index_arrays import check_page_size


@define(eq=False)
class Sequence:
    """The pages of one sequence. Made and changed by its `PagePool` only.

    Attributes:
        length: tokens in the cache.
        pages: page ids, in order; the last one is full or partial.
        pool: the `PagePool` that the pages are of; none as long as there are none.
    """

    length: int = 0
    pages: list[int] = field(factory=list)
    pool: PagePool | None = field(default=None, kw_only=True, repr=False)

    def __len__(self) -> int:
        return self.length


class PagePool:
    """Hands out the pages of a cache of `num_pages` pages of `page_size` slots. It holds no keys and values itself.

    Full pages are shared between a sequence and its forks. A partial last page that is shared is copied on the first
    append to either (copy on write): `take_copies` tells which pages to copy before anything is written to them.

    What would leave the pool in disorder raises `PageError`, and then nothing has changed: a count that is negative or
    no integer, a sequence of another pool or a copy of one, pages that are not held.
    """

    def __init__(self, num_pages: int, page_size: int):
        self.num_pages = _count(num_pages, "num_pages")
        self.page_size = check_page_size(page_size)
        self._refs = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._copy_from: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages that a sequence holds."""
        return self.num_pages - len(self._free)

    @property
    def num_shared(self) -> int:
        """Pages that more than one sequence holds."""
        return sum(refs > 1 for refs in self._refs)

    def new(self, tokens: int = 0) -> Sequence:
        """A sequence with room for `tokens` tokens. Raises `CacheFullError`, then nothing has changed."""
        sequence = Sequence(pool=self)
        self.append(sequence, tokens)
        return sequence

    def append(self, sequence: Sequence, tokens: int = 1):
        """Room for `tokens` more tokens.

        Returns:
            i64[tokens] cache slots, `page * page_size + offset`, to write their keys and values to.

        Raises:
            CacheFullError: there are too few free pages; nothing has changed.
        """
        needed = self.pages_needed(sequence, tokens)
        if needed > len(self._free):
            raise CacheFullError(
                f"{tokens} more token(s) need {needed} page(s) of {self.page_size} slots, {len(self._free)} are free"
            )
        begin = sequence.length
        if tokens and self._last_is_shared(sequence):
            shared = sequence.pages[-1]
            sequence.pages[-1] = self._take()
            self.drop([shared])
            self._copy_from[sequence.pages[-1]] = self._copy_from.get(shared, shared)
            needed -= 1
        sequence.pages.extend(self._take() for _ in range(needed))
        sequence.length, sequence.pool = begin + tokens, self
        return self.slots(sequence, begin)

    def pages_needed(self, sequence: Sequence, tokens: int) -> int:
        """Free pages that appending `tokens` tokens takes, the copy of a shared last page included."""
        self.require_own(sequence)
        tokens = _count(tokens, "tokens")
        fresh = -(-(sequence.length + tokens) // self.page_size) - len(sequence.pages)
        return fresh + (tokens > 0 and self._last_is_shared(sequence))

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same tokens, on the same pages."""
        self.require_own(sequence)
        self.hold(sequence.pages)
        return Sequence(sequence.length, list(sequence.pages), pool=self)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Drops the tokens from `length` on (rejected drafts) and the pages that held only them."""
        self.require_own(sequence)
        if _count(length, "length") > sequence.length:
            raise PageError(f"cannot truncate a sequence of {sequence.length} token(s) to {length}")
        keep = -(-length // self.page_size)
        self.drop(sequence.pages[keep:])
        del sequence.pages[keep:]
        sequence.length = length

    def free(self, sequence: Sequence) -> None:
        """Gives the sequence's pages back; it is empty afterwards."""
        self.truncate(sequence, 0)

    def take_copies(self):
        """i64[n, 2] pairs of pages `(from, to)` to copy before the next write to the cache; forgets them.

        All are read before any is written, as in `cache[to] = cache[from]` with `from, to = copies.T`.
        """
        copies, self._copy_from = self._copy_from, {}
        return np.array([(source, target) for target, source in copies.items()], np.int64).reshape(-1, 2)

    def slots(self, sequence: Sequence, begin: int = 0, end: int | None = None):
        """i64[end - begin] cache slots of the tokens `[begin, end)`."""
        end = sequence.length if end is None else end
        if not 0 <= begin <= end <= sequence.length:
            raise PageError(f"tokens [{begin}, {end}) were asked for of a sequence that has {sequence.length} token(s)")
        tokens = np.arange(begin, end)
        first = begin // self.page_size
        pages = np.array(sequence.pages[first:], np.int64)
        return pages[tokens // self.page_size - first] * self.page_size + tokens % self.page_size

    def block_tables(self, sequences):
        """i32[len(sequences), longest] page ids, padded with 0."""
        table = np.zeros((len(sequences), max((len(s.pages) for s in sequences), default=0)), np.int32)
        for row, sequence in zip(table, sequences, strict=True):
            row[: len(sequence.pages)] = sequence.pages
        return table

    def kv_lens(self, sequences):
        """i32[len(sequences)] tokens of each sequence."""
        return np.array([sequence.length for sequence in sequences], np.int32)

    def holders(self, page: int) -> int:
        """How many hold `page`."""
        return self._refs[page]

    def hold(self, pages) -> None:
        """One more holder for each of `pages`, which somebody holds already."""
        self._check_held(pages)
        for page in pages:
            self._refs[page] += 1

    def drop(self, pages) -> None:
        """One holder less for each of `pages`; those without any become free."""
        self._check_held(pages)
        for page in pages:
            self._refs[page] -= 1
            if not self._refs[page]:
                self._free.append(page)

    def _take(self) -> int:
        page = self._free.pop()
        self._refs[page] = 1
        return page

    def require_own(self, sequence: Sequence) -> None:
        """Raises `PageError` for a sequence whose pages are not this pool's to change."""
        if sequence.pool is not self and (sequence.pool is not None or sequence.pages or sequence.length):
            raise PageError(
                f"a sequence of {sequence.length} token(s) is not of this pool: another one made it, or it was made by "
                "hand or copied; a second sequence on the same pages is a fork"
            )

    def _check_held(self, pages) -> None:
        for page in pages:
            if not 0 <= page < self.num_pages:
                raise PageError(f"page {page} is not one of the pool's {self.num_pages} pages")
            if not self._refs[page]:
                raise PageError(f"page {page} is free: nobody holds it")

    def _last_is_shared(self, sequence: Sequence) -> bool:
        """Whether the next token goes to a page that somebody else holds too."""
        return sequence.length % self.page_size != 0 and self._refs[sequence.pages[-1]] > 1


def _count(value, what: str) -> int:
    """`value`, an integer of at least 0."""
    try:
        count = operator.index(value)
    except TypeError:
        raise PageError(f"{what} must be an integer, got {value!r}") from None
    if count < 0:
        raise PageError(f"{what} must be at least 0, got {count}")
    return count
