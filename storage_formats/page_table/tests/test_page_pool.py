"""`PagePool` against a model that remembers the tokens of every sequence and writes them to a cache."""

import numpy as np
import pytest
from attnloom.errors import CacheFullError
from attnloom_page_table import PagePool
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
