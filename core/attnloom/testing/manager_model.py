"""A cache manager against a plain model: what was written to each slot, and the tokens of each sequence.

A manager has the methods of `attnloom.pages.PagePool` (`new`, `append(sequence, count)`), or those of a radix tree
(`insert(tokens)`, `append(sequence, tokens)`), and any of `fork`, `truncate`, `free`, `evict` and `take_copies`. Its
`needs(sequences)` says what the format's builder is given, where that is more than `block_tables(sequences)`.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest import SkipTest

import numpy as np

from attnloom.errors import CacheFullError


class Books:
    """One manager, the sequences that it made, and what the cache would hold."""

    def __init__(self, manager_type: type, num_pages: int, page_size: int, index_of: Callable):
        self.manager = manager_type(num_pages, page_size)
        self.by_tokens = hasattr(self.manager, "insert")
        self.index_of = index_of
        self.sequences: list = []
        self.tokens: list[list[int]] = []
        self.cache = np.zeros(num_pages * page_size, np.int64)
        self.page_size = page_size

    def start(self, tokens: list[int]) -> None:
        """A new sequence, unless the cache is full."""
        try:
            if self.by_tokens:
                sequence = self.manager.insert(tokens)
                begin = sequence.cached
            else:
                sequence, begin = self.manager.new(len(tokens)), 0
        except CacheFullError:
            return
        self.sequences.append(sequence)
        self.tokens.append(list(tokens))
        self._write(len(self.sequences) - 1, begin)

    def append(self, at: int, tokens: list[int]) -> None:
        """More tokens of a sequence, unless the cache is full."""
        begin = len(self.tokens[at])
        try:
            slots = self.manager.append(self.sequences[at], tokens if self.by_tokens else len(tokens))
        except CacheFullError:
            return
        self.tokens[at] += tokens
        own = self.manager.slots(self.sequences[at], begin)
        assert np.array_equal(slots, own), f"append returns slots {list(slots)}, the sequence has {list(own)}"
        self._write(at, begin)

    def fork(self, at: int) -> None:
        """A second sequence with the same tokens."""
        try:
            self.sequences.append(self.manager.fork(self.sequences[at]))
        except CacheFullError:
            return
        self.tokens.append(list(self.tokens[at]))

    def truncate(self, at: int, length: int) -> None:
        """Drop what comes after `length` tokens."""
        self.manager.truncate(self.sequences[at], length)
        del self.tokens[at][length:]

    def free(self, at: int) -> None:
        """Give a sequence back."""
        self.manager.free(self.sequences.pop(at))
        self.tokens.pop(at)

    def evict(self, pages: int) -> None:
        """Drop what no sequence holds."""
        self.manager.evict(pages)

    def check(self) -> None:
        """Hold every sequence's slots, lengths and index to the model. Raises `AssertionError`."""
        self._copy_pages()
        lens = [len(tokens) for tokens in self.tokens]
        told = np.asarray(self.manager.kv_lens(self.sequences)).tolist()
        assert told == lens, f"kv_lens says {told}, appended were {lens}"
        for at, sequence in enumerate(self.sequences):
            slots = np.asarray(self.manager.slots(sequence))
            assert len(set(slots.tolist())) == lens[at], f"sequence {at}: two of its tokens share a slot"
            found, expected = self.cache[slots], self._values(at, 0)
            wrong = np.flatnonzero(found != expected)
            assert not len(wrong), (
                f"sequence {at}: slot {slots[wrong[0]]} of its token {wrong[0]} holds another sequence's key"
            )
        if self.sequences:
            self._check_index(lens)

    def _check_index(self, lens: list[int]) -> None:
        index = self.index_of(self.manager, self.sequences, [1] * len(lens))
        index.validate()
        dense = index.to_dense()
        for at, sequence in enumerate(self.sequences):
            got, own = dense.slot[at, : lens[at]], np.asarray(self.manager.slots(sequence))
            assert np.array_equal(got, own), (
                f"sequence {at}: the index shows slots {got.tolist()}, expected {own.tolist()}"
            )

    def _write(self, at: int, begin: int) -> None:
        self._copy_pages()
        self.cache[np.asarray(self.manager.slots(self.sequences[at], begin))] = self._values(at, begin)

    def _copy_pages(self) -> None:
        if not hasattr(self.manager, "take_copies"):
            return
        copies = np.asarray(self.manager.take_copies(), np.int64).reshape(-1, 2)
        pages = self.cache.reshape(-1, self.page_size)
        pages[copies[:, 1]] = pages[copies[:, 0]]

    def _values(self, at: int, begin: int) -> np.ndarray:
        """What a key is computed from: its token and all before it."""
        tokens = self.tokens[at]
        return np.array([hash(tuple(tokens[: place + 1])) for place in range(begin, len(tokens))], np.int64)


def run_model(manager_type: type, index_of: Callable, *, runs: int, steps: int, shrink: bool = True) -> None:
    """Drive a manager and its model with random operations.

    Args:
        manager_type: called as `manager_type(num_pages, page_size)`.
        index_of: called as `index_of(manager, sequences, qo_lens)`; the index of the sequences.
        shrink: whether to look for the fewest operations that go wrong.

    Raises:
        AssertionError: the two differ; hypothesis prints the shortest sequence of operations that it found.
        SkipTest: hypothesis is not installed.
    """
    try:
        import hypothesis
        from hypothesis import stateful
        from hypothesis import strategies as st
    except ImportError:
        raise SkipTest("needs hypothesis: pip install 'attnloom[testing]'") from None

    tokens = st.lists(st.integers(0, 3), min_size=1, max_size=9)
    places = st.integers(0, 10**6)

    class Model(stateful.RuleBasedStateMachine):
        @stateful.initialize(pages=st.integers(2, 24), page_size=st.sampled_from([4, 2, 1]))
        def begin(self, pages, page_size):
            self.books = Books(manager_type, pages, page_size, index_of)
            self.unique = 0

        def _tokens(self, given):
            """Pools do not look at tokens: theirs are all different, so that a slot shared by mistake shows."""
            if self.books.by_tokens:
                return given
            self.unique += len(given)
            return list(range(self.unique - len(given), self.unique))

        @stateful.rule(given=tokens)
        def start(self, given):
            self.books.start(self._tokens(given))

        @stateful.precondition(lambda self: self.books.sequences)
        @stateful.rule(place=places, given=tokens)
        def append(self, place, given):
            self.books.append(place % len(self.books.sequences), self._tokens(given))

        @stateful.precondition(lambda self: self.books.sequences and hasattr(self.books.manager, "fork"))
        @stateful.rule(place=places, given=tokens, other=tokens)
        def fork(self, place, given, other):
            """As beam search does: both branches go on, and the first must not find the second's keys."""
            at = place % len(self.books.sequences)
            self.books.fork(at)
            self.books.append(at, self._tokens(given))
            self.books.append(len(self.books.sequences) - 1, self._tokens(other))

        @stateful.precondition(lambda self: self.books.sequences and hasattr(self.books.manager, "truncate"))
        @stateful.rule(place=places, length=places)
        def truncate(self, place, length):
            at = place % len(self.books.sequences)
            self.books.truncate(at, length % (len(self.books.tokens[at]) + 1))

        @stateful.precondition(lambda self: self.books.sequences and hasattr(self.books.manager, "free"))
        @stateful.rule(place=places)
        def free(self, place):
            self.books.free(place % len(self.books.sequences))

        @stateful.precondition(lambda self: hasattr(self.books.manager, "evict"))
        @stateful.rule(pages=st.integers(0, 4))
        def evict(self, pages):
            self.books.evict(pages)

        @stateful.invariant()
        def books_agree(self):
            if hasattr(self, "books"):
                self.books.check()

    settings = hypothesis.settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if shrink else [])],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    stateful.run_state_machine_as_test(Model, settings=settings)
