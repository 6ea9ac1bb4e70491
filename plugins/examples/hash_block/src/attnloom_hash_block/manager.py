"""A made-up cache manager: a full block is found again by the hash of all tokens up to its end."""

import hashlib
from collections import OrderedDict

import numpy as np
from attnloom.errors import CacheFullError


class Sequence:
    """The blocks of one sequence.

    Attributes:
        tokens: its token ids.
        pages: its pages, in order; the last one is full or in progress.
        hashes: those of its full blocks.
        cached: how many of its first tokens were in the cache when it was inserted.
    """

    def __init__(self):
        self.tokens: list[int] = []
        self.pages: list[int] = []
        self.hashes: list[bytes] = []
        self.cached = 0


class HashBlocks:
    """Hands out the pages of a cache and remembers full ones that nobody holds, until their room is needed."""

    def __init__(self, num_pages: int, page_size: int):
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._holders = [0] * num_pages
        self._hash_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Pages that can be handed out, those with blocks that nobody holds included."""
        return len(self._free) + len(self._unused)

    def insert(self, tokens) -> Sequence:
        """A sequence of `tokens`; keys of its first `cached` ones are in its pages already.

        Raises:
            CacheFullError: there are too few pages; nothing has changed.
        """
        sequence, tokens = Sequence(), list(tokens)
        for begin in range(0, len(tokens) - self.page_size, self.page_size):
            key = _hash(sequence.hashes, tokens[begin : begin + self.page_size])
            if key not in self._page_of:
                break
            self._hold(self._page_of[key])
            sequence.hashes.append(key)
            sequence.pages.append(self._page_of[key])
        sequence.cached = len(sequence.pages) * self.page_size
        sequence.tokens = tokens[: sequence.cached]
        try:
            self.append(sequence, tokens[sequence.cached :])
        except CacheFullError:
            self.free(sequence)
            raise
        return sequence

    def append(self, sequence: Sequence, tokens):
        """More tokens. Returns i64 slots to write their keys to. Raises `CacheFullError`; nothing has changed then."""
        begin, tokens = len(sequence.tokens), list(tokens)
        needed = -(-(begin + len(tokens)) // self.page_size) - len(sequence.pages)
        if needed > self.num_free:
            raise CacheFullError(f"{len(tokens)} token(s) need {needed} block(s), {self.num_free} can be had")
        sequence.pages += [self._take() for _ in range(needed)]
        sequence.tokens += tokens
        for block in range(len(sequence.hashes), len(sequence.tokens) // self.page_size):
            own = sequence.tokens[block * self.page_size : (block + 1) * self.page_size]
            sequence.hashes.append(_hash(sequence.hashes, own))
            if sequence.hashes[-1] not in self._page_of:
                self._page_of[sequence.hashes[-1]] = sequence.pages[block]
                self._hash_of[sequence.pages[block]] = sequence.hashes[-1]
        return self.slots(sequence, begin)

    def free(self, sequence: Sequence) -> None:
        """Give a sequence's blocks back; full ones stay to be found."""
        for page in sequence.pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                if page in self._hash_of:
                    self._unused[page] = None
                else:
                    self._free.append(page)
        sequence.tokens, sequence.pages, sequence.hashes = [], [], []

    def evict(self, pages: int) -> int:
        """Forget up to `pages` blocks that nobody holds, the longest unused first. Returns how many."""
        gone = min(pages, len(self._unused))
        for _ in range(gone):
            page, _ = self._unused.popitem(last=False)
            del self._page_of[self._hash_of.pop(page)]
            self._free.append(page)
        return gone

    def slots(self, sequence: Sequence, begin: int = 0):
        """i64 slots of the sequence's tokens from `begin` on."""
        place = np.arange(begin, len(sequence.tokens))
        pages = np.array(sequence.pages, np.int64)
        return pages[place // self.page_size] * self.page_size + place % self.page_size

    def kv_lens(self, sequences):
        """i32: tokens of each sequence."""
        return np.array([len(sequence.tokens) for sequence in sequences], np.int32)

    def needs(self, sequences) -> dict:
        """What `build_index` of `hash_block` is given for a batch of sequences."""
        keys, blocks = [], {}
        for sequence in sequences:
            # Two sequences may have written equal blocks to pages of their own: a key says whose page it is.
            own = list(zip(sequence.hashes, sequence.pages, strict=False))
            blocks.update({pair: pair[1] for pair in own})
            keys.append(own)
        partial = [len(sequence.tokens) % self.page_size for sequence in sequences]
        tails = [s.pages[-1] if rest else -1 for s, rest in zip(sequences, partial, strict=True)]
        return {"hashes": keys, "blocks": blocks, "tails": tails}

    def _take(self) -> int:
        if not self._free:
            self.evict(1)
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def _hold(self, page: int) -> None:
        self._unused.pop(page, None)
        self._holders[page] += 1


def _hash(before: list[bytes], tokens) -> bytes:
    """The name of a block: of its tokens and of all blocks before it."""
    return hashlib.blake2b((before[-1] if before else b"") + repr(tokens).encode(), digest_size=16).digest()
