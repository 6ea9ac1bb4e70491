"""`RadixTree` against a model that keeps every sequence's tokens, and a cache that remembers what was written."""

import numpy as np
import pytest
from attnloom.errors import CacheFullError, PageError
from attnloom_radix_tree import RadixTree
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

PAGES, PAGE_SIZE = 14, 3


class TreeMachine(RuleBasedStateMachine):
    """The cache holds, for each slot, the whole token prefix it was computed from: what keys and values depend on."""

    def __init__(self):
        super().__init__()
        self.tree = RadixTree(PAGES, PAGE_SIZE)
        self.cache = np.full(PAGES * PAGE_SIZE, None, object)
        self.held = []
        self.seen = set()

    def write(self, sequence, begin):
        sources, targets = self.tree.take_copies().T
        pages = self.cache.reshape(PAGES, PAGE_SIZE)
        pages[targets] = pages[sources]
        for at, slot in zip(range(begin, len(sequence)), self.tree.slots(sequence, begin), strict=True):
            self.cache[slot] = tuple(sequence.tokens[: at + 1])

    tokens = st.lists(st.integers(0, 1), max_size=14)

    @rule(tokens=tokens)
    def insert(self, tokens):
        found, free = self.tree.match(tokens), self.tree.num_free + self.tree.num_cached
        try:
            sequence = self.tree.insert(tokens)
        except CacheFullError:
            assert self.tree.num_free + self.tree.num_cached == free
        else:
            at_most = max(len(tokens) - 1, 0) // PAGE_SIZE * PAGE_SIZE
            assert sequence.cached == min(found, at_most)
            self.write(sequence, sequence.cached)
            self.held.append((sequence, list(tokens)))
            self.seen.add(tuple(tokens))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), max_size=4))
    def append(self, data, tokens):
        sequence, model = data.draw(st.sampled_from(self.held))
        begin = len(model)
        try:
            slots = self.tree.append(sequence, tokens)
        except CacheFullError:
            assert sequence.tokens == model
        else:
            model += tokens
            assert slots.tolist() == self.tree.slots(sequence, begin).tolist()
            self.write(sequence, begin)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data):
        sequence, model = data.draw(st.sampled_from(self.held))
        copy = self.tree.fork(sequence)
        assert copy.cached == len(model)
        self.held.append((copy, list(model)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), length=st.integers(0, 14))
    def truncate(self, data, length):
        sequence, model = data.draw(st.sampled_from(self.held))
        self.tree.truncate(sequence, min(length, len(model)))
        del model[length:]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keep=st.booleans())
    def free(self, data, keep):
        sequence, model = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.tree.free(sequence, keep=keep)
        assert len(sequence) == 0
        if keep:
            assert self.tree.match(model) == len(model) // PAGE_SIZE * PAGE_SIZE

    @rule(pages=st.integers(0, PAGES))
    def evict(self, pages):
        free, cached = self.tree.num_free, self.tree.num_cached
        can = sum(self.evictable(node) for node in self.tree._root.children.values())
        freed = self.tree.evict(pages)
        assert self.tree.num_free == free + freed
        assert freed == min(pages, can)
        assert can <= cached

    def evictable(self, node):
        """Pages below and at the end of `node` that nothing but the tree holds."""
        below = sum(self.evictable(child) for child in node.children.values())
        if below < sum(len(each.pages) for each in self.nodes_below(node)):
            return below
        own = list(reversed(node.pages))
        return below + next((at for at, page in enumerate(own) if self.tree.pool.holders(page) > 1), len(own))

    def nodes_below(self, node):
        for child in node.children.values():
            yield child
            yield from self.nodes_below(child)

    @rule(tokens=tokens)
    def match_finds_only_what_was_there(self, tokens):
        found = self.tree.match(tokens)
        assert found % PAGE_SIZE == 0
        assert found <= len(tokens)

    @invariant()
    def every_sequence_reads_its_own_keys(self):
        for sequence, model in self.held:
            assert sequence.tokens == model
            assert len(sequence) == len(model)
            for at, slot in enumerate(self.tree.slots(sequence)):
                assert self.cache[slot] == tuple(model[: at + 1])

    @invariant()
    def the_tree_holds_what_its_tokens_say(self):
        for node in self.tree._nodes():
            assert len(node.tokens) == len(node.pages) * PAGE_SIZE > 0
            prefix, up = [], node
            while up is not None:
                prefix[:0] = up.tokens.tolist()
                up = up.parent
            begin = len(prefix) - len(node.tokens)
            for at in range(begin, len(prefix)):
                page, slot = divmod(at - begin, PAGE_SIZE)
                assert self.cache[node.pages[page] * PAGE_SIZE + slot] == tuple(prefix[: at + 1])

    @invariant()
    def pages_are_counted(self):
        in_tree = [page for node in self.tree._nodes() for page in node.pages]
        held = [page for sequence, _ in self.held for page in sequence.pages]
        assert len(in_tree) == len(set(in_tree))
        for page in range(PAGES):
            assert self.tree.pool.holders(page) == held.count(page) + in_tree.count(page)
        assert self.tree.num_free == PAGES - len(set(held) | set(in_tree))
        assert self.tree.num_used == len(set(held))
        assert self.tree.num_cached == len(set(in_tree) - set(held))
        assert self.tree.num_shared == len({page for page in held if held.count(page) > 1})


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=30, stateful_step_count=35, deadline=None)


def test_equal_prompts_share_whole_pages():
    tree = RadixTree(num_pages=16, page_size=4)
    first = tree.insert(range(10))
    second = tree.insert([*range(9), 99, 98])
    assert (first.cached, second.cached) == (0, 8)
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]
    third = tree.insert(range(8))
    assert third.cached == 4, "the last token is left to compute"
    assert tree.match(range(8)) == 8


def test_a_fork_shares_the_partial_page_until_it_is_written():
    tree = RadixTree(num_pages=16, page_size=4)
    parent = tree.insert(range(6))
    child = tree.fork(parent)
    assert child.pages == parent.pages
    tree.append(child, [7])
    assert child.pages[0] == parent.pages[0]
    assert tree.take_copies().tolist() == [[parent.pages[1], child.pages[1]]]
    tree.append(parent, [8])
    assert not len(tree.take_copies())


def test_the_least_recently_used_goes_first_and_pages_in_use_stay():
    tree = RadixTree(num_pages=4, page_size=2)
    for tokens in ([1, 1], [2, 2], [3, 3]):
        tree.free(tree.insert(tokens))
    tree.free(tree.insert([1, 1, 5]))
    held = tree.insert([3, 3, 4])
    assert tree.num_free == 0
    tree.append(held, [4, 4])
    assert [tree.match(tokens) for tokens in ([1, 1], [2, 2], [3, 3])] == [2, 0, 2]
    with pytest.raises(CacheFullError, match="9 more token"):
        tree.append(held, [4] * 9)
    assert held.tokens == [3, 3, 4, 4, 4]


def test_unwritten_pages_are_forgotten():
    tree = RadixTree(num_pages=8, page_size=2)
    kept = tree.insert([1, 2, 3, 4])
    failed = tree.insert([1, 2, 3, 4, 5, 6, 7, 8])
    assert failed.cached == 4
    assert tree.match([1, 2, 3, 4, 5, 6, 7, 8]) == 8
    tree.free(failed, keep=False)
    assert tree.match([1, 2, 3, 4, 5, 6, 7, 8]) == 4
    assert tree.num_used == len(kept.pages)
    assert tree.num_cached == 0


def test_generated_pages_are_found_after_free():
    tree = RadixTree(num_pages=8, page_size=2)
    sequence = tree.insert([1, 2, 3])
    tree.append(sequence, [4])
    tree.append(sequence, [5])
    assert tree.match([1, 2, 3, 4]) == 2
    tree.free(sequence)
    assert tree.match([1, 2, 3, 4, 5]) == 4


def test_the_queue_of_leaves_stays_small():
    tree = RadixTree(num_pages=4, page_size=1)
    for turn in range(2000):
        tree.free(tree.insert([turn % 3, 7]))
    assert len(tree._leaves) <= 64 + 2 * 4 + 1
    assert tree.evict(4) == 4
    assert tree.num_free == 4


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("act", ["free", "fork", "append", "truncate"])
def test_a_sequence_of_another_tree_changes_nothing(act, keep):
    tree, other = RadixTree(4, 2), RadixTree(4, 2)
    tree.insert([1, 2, 3, 4, 5])
    stranger = other.insert([1, 2, 3, 4, 6, 7])
    before = list(tree.pool._refs), sorted(tree.pool._free), tree.num_cached, tree.match([1, 2, 3, 4, 6, 7, 8])
    calls = {
        "free": lambda: tree.free(stranger, keep=keep),
        "fork": lambda: tree.fork(stranger),
        "append": lambda: tree.append(stranger, [8, 9, 10]),
        "truncate": lambda: tree.truncate(stranger, 1),
    }
    with pytest.raises(PageError, match="not of this pool"):
        calls[act]()
    after = list(tree.pool._refs), sorted(tree.pool._free), tree.num_cached, tree.match([1, 2, 3, 4, 6, 7, 8])
    assert after == before and len(stranger) == 6
