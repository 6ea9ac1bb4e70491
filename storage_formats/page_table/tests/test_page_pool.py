"""`PagePool` against a model that remembers the tokens of every sequence and writes them to a cache."""

import copy

import numpy as np
import pytest
from attnloom.errors import CacheFullError, PageError
from attnloom_page_table import PagePool, Sequence
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

PAGES, PAGE_SIZE = 12, 4


class PoolMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pool = PagePool(PAGES, PAGE_SIZE)
        self.cache = np.full((PAGES, PAGE_SIZE), -1)
        self.held = []
        self.next_token = 0

    def write(self, slots):
        sources, targets = self.pool.take_copies().T
        self.cache[targets] = self.cache[sources]
        tokens = list(range(self.next_token, self.next_token + len(slots)))
        self.next_token += len(slots)
        self.cache.reshape(-1)[slots] = tokens
        return tokens

    @rule(tokens=st.integers(0, 9))
    def new(self, tokens):
        free = self.pool.num_free
        try:
            sequence = self.pool.new(tokens)
        except CacheFullError:
            assert self.pool.num_free == free < -(-tokens // PAGE_SIZE)
        else:
            self.held.append((sequence, self.write(self.pool.slots(sequence))))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(0, 6))
    def append(self, data, tokens):
        sequence, model = data.draw(st.sampled_from(self.held))
        try:
            slots = self.pool.append(sequence, tokens)
        except CacheFullError:
            assert sequence.length == len(model)
        else:
            assert len(slots) == tokens
            model += self.write(slots)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data):
        sequence, model = data.draw(st.sampled_from(self.held))
        self.held.append((self.pool.fork(sequence), list(model)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), length=st.integers(0, 20))
    def truncate(self, data, length):
        sequence, model = data.draw(st.sampled_from(self.held))
        length = min(length, len(model))
        self.pool.truncate(sequence, length)
        del model[length:]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data):
        at = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.free(self.held.pop(at)[0])

    @invariant()
    def every_sequence_reads_its_own_tokens(self):
        for sequence, model in self.held:
            assert len(sequence) == len(model)
            assert self.cache.reshape(-1)[self.pool.slots(sequence)].tolist() == model

    @invariant()
    def pages_are_counted(self):
        held = [page for sequence, _ in self.held for page in sequence.pages]
        assert self.pool.num_used == len(set(held))
        assert self.pool.num_shared == len({page for page in held if held.count(page) > 1})


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_tables_and_lengths():
    pool = PagePool(8, 4)
    a, b = pool.new(9), pool.new(2)
    assert pool.block_tables([a, b]).tolist() == [[*a.pages], [b.pages[0], 0, 0]]
    assert pool.kv_lens([a, b]).tolist() == [9, 2]
    assert pool.block_tables([]).shape == (0, 0)
    assert pool.slots(a, 7).tolist() == [a.pages[1] * 4 + 3, a.pages[2] * 4]


def test_truncating_past_the_end_is_an_error():
    pool = PagePool(8, 4)
    with pytest.raises(ValueError, match=r"3 token\(s\) to 4"):
        pool.truncate(pool.new(3), 4)


def state(pool):
    return sorted(pool._free), list(pool._refs), dict(pool._copy_from)


ABUSE = {
    "less than none": (lambda pool, held: pool.new(-1), "tokens must be at least 0, got -1"),
    "half a token": (lambda pool, held: pool.new(1.5), "tokens must be an integer, got 1.5"),
    "no number": (lambda pool, held: pool.new(None), "tokens must be an integer, got None"),
    "fewer by append": (lambda pool, held: pool.append(held, -3), "tokens must be at least 0, got -3"),
    "truncate below": (lambda pool, held: pool.truncate(held, -1), "length must be at least 0, got -1"),
    "truncate above": (lambda pool, held: pool.truncate(held, 10), r"9 token\(s\) to 10"),
    "slots past the end": (lambda pool, held: pool.slots(held, 0, 10), r"\[0, 10\).*9 token\(s\)"),
    "slots before": (lambda pool, held: pool.slots(held, -1), r"\[-1, 9\)"),
    "another pool's, freed": (lambda pool, held: pool.free(PagePool(8, 4).new(9)), "not of this pool"),
    "another pool's, forked": (lambda pool, held: pool.fork(PagePool(99, 4).new(99)), "not of this pool"),
    "another pool's, longer": (lambda pool, held: pool.append(PagePool(8, 4).new(9), 4), "not of this pool"),
    "by hand": (lambda pool, held: pool.free(Sequence(4, [0])), "not of this pool"),
    "a copy": (lambda pool, held: pool.free(copy.deepcopy(held)), "not of this pool"),
    "a free page held": (lambda pool, held: pool.hold([0, 7]), "page 7 is free"),
    "a free page dropped": (lambda pool, held: pool.drop([7]), "page 7 is free"),
    "no page": (lambda pool, held: pool.hold([8]), "page 8 is not one of the pool's 8"),
    "a page before the first": (lambda pool, held: pool.drop([-1]), "page -1 is not one"),
}


@pytest.mark.parametrize("abuse", ABUSE)
def test_abuse_changes_nothing(abuse):
    pool = PagePool(8, 4)
    held = pool.new(9)
    before = state(pool), held.length, list(held.pages)
    act, message = ABUSE[abuse]
    with pytest.raises(PageError, match=message):
        act(pool, held)
    assert (state(pool), held.length, held.pages) == before


def test_freed_twice_is_freed_once():
    pool = PagePool(8, 4)
    held = pool.new(9)
    pool.free(held)
    pool.free(held)
    assert pool.num_free == 8
    assert len(pool.append(held, 5)) == 5


@pytest.mark.parametrize(
    "pages, message", [(-1, "num_pages must be at least 0"), ("4", "num_pages must be an integer")]
)
def test_pools_of_no_size(pages, message):
    with pytest.raises(PageError, match=message):
        PagePool(pages, 4)
