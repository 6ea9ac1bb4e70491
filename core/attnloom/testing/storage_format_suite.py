"""What a storage format is held to."""

from __future__ import annotations

from typing import ClassVar
from unittest import SkipTest

import numpy as np

from attnloom.errors import IndexFormatError
from attnloom.index import ComposedIndex
from attnloom.resolve import resolve_code
from attnloom.testing import batches
from attnloom.testing.indices import arrays_of
from attnloom.testing.suite import PluginSuite


class StorageFormatSuite(PluginSuite):
    """Subclass it in a test file and name the format.

    Attributes:
        storage_format: its name.
        page_sizes: those that every check is made with.
        num_examples: batches of each page size.
        steps: operations of a run of the manager's model, which is run twice `num_examples` times.
        shrink: whether operations after which the books are wrong are shortened to the fewest, which takes a while.
    """

    kind = "storage_format"
    storage_format: str
    page_sizes: ClassVar[tuple[int, ...]] = (1, 3, 16)
    num_examples: ClassVar[int] = 8
    steps: ClassVar[int] = 25
    shrink: ClassVar[bool] = True

    def example(self, rng: np.random.Generator, qo_lens, kv_lens, page_size: int) -> tuple:
        """`(needs, slots)` of a batch: what the builder is given, and for each request the slots of its keys.

        A third element, bool [qo_len, kv_len] for each request, says which keys its tokens see; none: all. None instead
        of all three: the format has no such batch.
        """
        storage_format = self.descriptor
        if storage_format.example is None:
            raise AssertionError(
                f"storage format {self.name!r} gives no example: say example='module:fn' in its descriptor, called as "
                "fn(rng, qo_lens, kv_lens, page_size) -> (needs, slots), or override example() in the suite"
            )
        return resolve_code(storage_format.example)(rng, qo_lens, kv_lens, page_size)

    def index_of(self, manager, sequences, qo_lens) -> ComposedIndex:
        """The index of a batch of the manager's sequences: from what its `needs(sequences)` says, or `block_tables`."""
        if hasattr(manager, "needs"):
            needs = manager.needs(sequences)
        else:
            needs = {"block_tables": manager.block_tables(sequences)}
        return self.build(qo_lens, manager.kv_lens(sequences), manager.page_size, **needs)

    # The descriptor

    def named_code(self):
        """The code that the descriptor names."""
        one = self.descriptor
        named = [("builder", one.builder), ("example", one.example), ("manager", one.manager)]
        return [(label, path) for label, path in named if path is not None]

    def modules(self):
        """The modules that the descriptor names."""
        return [path.partition(":")[0] for _, path in self.named_code()]

    # The index

    def test_build_and_back(self):
        """Spelled out pair by pair, the index shows each query token the slots of its request's keys, in order."""
        for about, index, qo_lens, kv_lens, slots, visible in self._built(self._rng(1)):
            dense = index.to_dense()
            assert np.diff(index.qo_indptr).tolist() == qo_lens, f"{about}: qo_indptr is {index.qo_indptr.tolist()}"
            assert index.kv_len.tolist() == kv_lens, f"{about}: kv_len is {index.kv_len.tolist()}"
            for token, request in enumerate(index.token_request):
                own = np.asarray(slots[request], np.int64)
                assert len(own) == kv_lens[request], f"{about}: the example gives request {request} {len(own)} slot(s)"
                got = dense.slot[token]
                shown = dense.visible[token, : len(own)]
                assert (got[len(own) :] == -1).all(), (
                    f"{about}: token {token} of request {request} sees key {len(own)}, its kv_len is {len(own)}"
                )
                wrong = np.flatnonzero((got[: len(own)] != own) & shown)
                assert not len(wrong), (
                    f"{about}: token {token} of request {request} finds key {wrong[0]} in slot {got[wrong[0]]}, "
                    f"expected {own[wrong[0]]}"
                )
                want = np.ones(len(own), bool)
                if visible is not None:
                    want = visible[request][token - index.qo_indptr[request]]
                wrong = np.flatnonzero(shown != want)
                assert not len(wrong), (
                    f"{about}: token {token} of request {request} {'sees' if shown[wrong[0]] else 'does not see'} key "
                    f"{wrong[0]}"
                )

    def test_index_is_valid(self):
        """The index passes every check that the host can make, those that a trusted builder skips included."""
        for about, index, *_ in self._built(self._rng(2)):
            for one in (index, index.single):
                if one is not None:
                    try:
                        one.validate()
                    except IndexFormatError as error:
                        raise AssertionError(f"{about}: {error}") from error

    def test_pages_stay_in_bounds(self):
        """No row uses a page beyond those that the example's slots lie in."""
        for about, index, _, _, slots, _ in self._built(self._rng(3)):
            most = max((int(np.max(own)) for own in slots if len(own)), default=-1) // index.page_size
            try:
                index.check_pages(most + 1)
            except IndexFormatError as error:
                raise AssertionError(f"{about}: {error}") from error

    def test_single_form_shows_the_same(self):
        """The uncomposed form shows the same pairs, slots and positions as the composed one."""
        found = False
        for about, index, *_ in self._built(self._rng(4)):
            if index.single is None:
                continue
            found = True
            one, other = index.to_dense(), index.single.to_dense()
            for field in ("visible", "slot", "kv_pos", "q_pos"):
                same = np.array_equal(getattr(one, field), getattr(other, field))
                assert same, f"{about}: index.single and index differ in {field}"
        if not found:
            raise SkipTest("the format gives no single form of these batches")

    def test_builds_are_repeatable(self):
        """The same batch gives the same arrays, whatever was built in between, and nothing given is changed."""
        for page_size in self.page_sizes:
            first = self._arrays(page_size)
            self._arrays(page_size, seed=99)
            again = self._arrays(page_size)
            assert first.keys() == again.keys(), f"page_size {page_size}: the same batch gives other arrays"
            for label in first:
                same = np.array_equal(first[label], again[label])
                assert same, f"page_size {page_size}: the same batch gives another {label} the second time"

    def test_lengths_come_in_any_integer_type(self):
        """Lists, tuples, and numpy arrays of any integer type mean the same."""
        qo_lens, kv_lens = [2, 0, 1], [5, 3, 1]
        for page_size in self.page_sizes[:1]:
            needs, *_ = self.example(self._rng(5), qo_lens, kv_lens, page_size)
            expected = self.build(qo_lens, kv_lens, page_size, **needs).to_dense().slot
            for kind in (np.int64, np.uint32, np.int16, tuple):
                given = [kind(lens) if kind is tuple else np.array(lens, kind) for lens in (qo_lens, kv_lens)]
                needs, *_ = self.example(self._rng(5), qo_lens, kv_lens, page_size)
                try:
                    got = self.build(*given, page_size, **needs).to_dense().slot
                except Exception as error:
                    raise AssertionError(f"lengths as {kind.__name__}: {type(error).__name__}: {error}") from error
                assert np.array_equal(got, expected), f"lengths as {kind.__name__} give another index"

    def test_contradictions_are_refused(self):
        """Negative lengths, lists of other lengths and page sizes below 1 raise `IndexFormatError`."""
        wrong = {
            "a negative kv_len": ([1, 1], [3, -1], 2),
            "a negative qo_len": ([-1, 1], [3, 1], 2),
            "more kv_lens than qo_lens": ([1, 1], [3, 1, 1], 2),
            "a page size of 0": ([1, 1], [3, 1], 0),
        }
        needs, *_ = self.example(self._rng(6), [1, 1], [3, 1], 2)
        for about, (qo_lens, kv_lens, page_size) in wrong.items():
            try:
                self.build(qo_lens, kv_lens, page_size, **needs)
            except IndexFormatError:
                continue
            except Exception as error:
                raise AssertionError(
                    f"{about} raises {type(error).__name__} ({error}), not IndexFormatError"
                ) from error
            raise AssertionError(
                f"{about} is accepted: {self.name}.build_index({qo_lens}, {kv_lens}, {page_size}, ...)"
            )

    def test_kernel_agrees_with_the_reference(self):
        """A kernel that runs over the index gives what the float64 reference gives; unused slots are NaN."""
        from attnloom import AttentionSpec, AttentionWrapper, Tile

        spec = AttentionSpec(
            ["causal"], num_qo_heads=4, num_kv_heads=2, head_dim=16, dtype="float32", tile=Tile(16, 16)
        )
        wrapper = AttentionWrapper(spec, num_threads=1, num_workers=3)
        rng = self._rng(7)
        for about, index, _, _, slots, _ in self._built(rng):
            pages = max((int(np.max(own)) for own in slots if len(own)), default=0) // index.page_size + 1
            data = batches.tensors(rng, spec, index, pages)
            batches.check(wrapper, index, data, tolerance=2e-5, about=about)

    def test_manager_keeps_its_books(self):
        """Whatever is appended, forked, truncated, freed and evicted, each sequence finds its own keys in its slots."""
        if self.descriptor.manager is None:
            raise SkipTest(f"storage format {self.name!r} names no manager")
        from attnloom.testing.manager_model import run_model

        size = {"runs": self.num_examples * 2, "steps": self.steps, "shrink": self.shrink}
        run_model(resolve_code(self.descriptor.manager), self.index_of, **size)

    # How it is done

    def build(self, qo_lens, kv_lens, page_size, **needs) -> ComposedIndex:
        """The index of one batch."""
        return self.descriptor.build_index(qo_lens, kv_lens, page_size, **needs)

    def _rng(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)

    def _built(self, rng):
        """`(about, index, qo_lens, kv_lens, slots, visible)` of generated batches."""
        for page_size in self.page_sizes:
            for number in range(self.num_examples):
                qo_lens, kv_lens = lengths(rng, number)
                if (given := self.example(rng, qo_lens, kv_lens, page_size)) is None:
                    continue
                needs, slots, *visible = given
                about = f"{self.name}: qo_lens {qo_lens}, kv_lens {kv_lens}, page_size {page_size}"
                try:
                    index = self.build(qo_lens, kv_lens, page_size, **needs)
                except IndexFormatError as error:
                    raise AssertionError(f"{about}: its own example is refused: {error}") from error
                assert isinstance(index, ComposedIndex), f"{about}: build_index returned {type(index).__name__}"
                yield about, index, qo_lens, kv_lens, slots, visible[0] if visible else None

    def _arrays(self, page_size: int, seed: int = 8) -> dict[str, np.ndarray]:
        rng = self._rng(seed)
        arrays = {}
        for number in range(3):
            qo_lens, kv_lens = lengths(rng, number)
            if (given := self.example(rng, qo_lens, kv_lens, page_size)) is None:
                continue
            needs = given[0]
            before = {key: _copy(value) for key, value in needs.items()}
            index = self.build(qo_lens, kv_lens, page_size, **needs)
            for key, value in before.items():
                assert _same(value, needs[key]), f"building changes {key}, which belongs to the caller"
            arrays |= {f"{number}: {label}": array.copy() for label, array in arrays_of(index)}
        return arrays


def lengths(rng: np.random.Generator, number: int) -> tuple[list[int], list[int]]:
    """Lengths of a batch: first those that are special, then random ones."""
    if number < len(batches.LENGTHS):
        qo_lens, kv_lens = batches.LENGTHS[number]
        return list(qo_lens), list(kv_lens)
    requests = int(rng.integers(1, 6))
    return rng.integers(0, 5, requests).tolist(), rng.integers(0, 60, requests).tolist()


def _copy(value):
    import copy

    return copy.deepcopy(value) if isinstance(value, (list, tuple, dict, np.ndarray)) else value


def _same(one, other) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return one is other or bool(np.all(one == other))
