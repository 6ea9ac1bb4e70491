"""What a tile heuristic is held to."""

from __future__ import annotations

from typing import ClassVar
from unittest import SkipTest

import numpy as np

from attnloom.errors import AttnloomError
from attnloom.resolve import resolve_code
from attnloom.testing import batches
from attnloom.testing.indices import paged_index
from attnloom.testing.suite import PluginSuite
from attnloom.tile import TileChoice, TileProblem

FAMILIES = ("host", "mma")


def problems(families: tuple[str, ...] = ("host",)) -> list[TileProblem]:
    """Problems that a heuristic may be told: every usual head dimension, group and dtype."""
    return [
        TileProblem(
            family=family,
            device="cpu" if family == "host" else "cuda",
            dtype=dtype,
            kv_dtype=kv_dtype,
            head_dim=head_dim,
            head_dim_v=head_dim,
            num_qo_heads=2 * group,
            num_kv_heads=2,
            functors=frozenset(functors),
            max_qo_len=max_qo_len,
        )
        for family in families
        for dtype, kv_dtype in (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float8_e4m3fn"))
        for head_dim in (16, 64, 80, 128, 256)
        for group in (1, 3, 8, 16, 71)
        for functors in ((), ("kv_range", "logits_transform"))
        for max_qo_len in (None, 1)
    ]


class TileHeuristicSuite(PluginSuite):
    """Subclass it in a test file and name the heuristic.

    Attributes:
        tile_heuristic: its name.
        families: the kernel families that it knows.
    """

    kind = "tile_heuristic"
    tile_heuristic: str
    families: ClassVar[tuple[str, ...]] = ("host",)

    def named_code(self):
        """The code that the descriptor names."""
        return [("choose", self.descriptor.choose)]

    def modules(self):
        """The module of the rule."""
        return [self.descriptor.choose.partition(":")[0]]

    def test_choices_are_tiles_that_kernels_have(self):
        """For every problem the rule returns none, or tiles that hold a query token's heads and that kernels take."""
        for problem, choice in self._choices():
            check_choice(self.name, problem, choice)

    def test_choices_say_why(self):
        """A choice comes with its reasons, for `attnloom explain`."""
        for problem, choice in self._choices():
            said = all(isinstance(why, str) and why.strip() for why in choice.why)
            assert choice.why and said, f"{self.name!r} does not say why it chooses {choice} for {problem}"

    def test_same_problem_same_choice(self):
        """The rule is pure: asked again, in another order, it chooses the same."""
        known = problems(self.families)
        first = [self._choose(problem) for problem in known]
        again = [self._choose(problem) for problem in reversed(known)][::-1]
        for problem, one, other in zip(known, first, again, strict=True):
            assert one == other, f"{self.name!r} chooses {one}, then {other}, for {problem}"

    def test_families_it_does_not_know(self):
        """Of a kernel family that it does not know the rule has no opinion; it does not raise."""
        for problem in problems(("a_family_of_the_future",))[:20]:
            choice = self._choose(problem)
            assert choice is None, (
                f"{self.name!r} chooses {choice} for the family {problem.family!r}: return None there"
            )

    def test_has_an_opinion(self):
        """There is a problem for which the rule chooses something."""
        assert any(True for _ in self._choices()), f"{self.name!r} returns none for every problem of {self.families}"

    def test_kernel_agrees_with_the_reference(self):
        """A kernel of the chosen tiles gives what the float64 reference gives."""
        from attnloom import AttentionSpec, AttentionWrapper

        chosen = [problem for problem, _ in self._choices() if problem.family == "host" and problem.dtype == "float32"]
        if not chosen:
            raise SkipTest("it chooses no tiles of host kernels in float32")
        problem = chosen[0]
        spec = AttentionSpec(
            ["causal"],
            num_qo_heads=problem.num_qo_heads,
            num_kv_heads=problem.num_kv_heads,
            head_dim=problem.head_dim,
            dtype="float32",
            tile=self.name,
            plugins=self.plugin_set,
        )
        wrapper = AttentionWrapper(spec, num_threads=1, num_workers=3)
        by = wrapper.kernel.tiles.by
        assert by == self.name, (
            f"the kernel's tiles are chosen by {by!r}, not by {self.name!r}: {wrapper.kernel.tiles.why}"
        )
        rng = np.random.default_rng(1)
        for qo_lens, kv_lens in batches.LENGTHS:
            index, pages = paged_index(rng, qo_lens, kv_lens, 16)
            data = batches.tensors(rng, spec, index, pages)
            about = f"{self.name}: {wrapper.kernel.tiles}, qo_lens {qo_lens}, kv_lens {kv_lens}"
            batches.check(wrapper, index, data, tolerance=2e-5, about=about)

    def _choose(self, problem: TileProblem):
        try:
            return resolve_code(self.descriptor.choose)(problem, **self.descriptor.options)
        except Exception as error:
            raise AssertionError(f"{self.name!r} raises {type(error).__name__} ({error}) for {problem}") from error

    def _choices(self):
        """The problems of the heuristic's families that it has an opinion of, with its choice."""
        pairs = ((problem, self._choose(problem)) for problem in problems(self.families))
        return [(problem, choice) for problem, choice in pairs if choice is not None]


def check_choice(name: str, problem: TileProblem, choice) -> None:
    """Require a `TileChoice` that a kernel of the problem's family can have. Raises `AssertionError`."""
    assert isinstance(choice, TileChoice), f"{name!r} returns {choice!r}, which is neither None nor a TileChoice"
    tiles = [tile for tile in (choice.short, choice.tall) if tile is not None]
    for tile in tiles:
        assert tile.family == problem.family, f"{name!r} chooses {tile} for the family {problem.family!r}"
    rows = max(tile.t_q for tile in tiles)
    assert rows >= problem.group, (
        f"{name!r} chooses {choice} where {problem.group} query heads share a kv head: one of its tiles must have a "
        "t_q of at least that"
    )
    if choice.tall is not None:
        assert choice.tall.t_q > choice.short.t_q, (
            f"{name!r}: the tall tile {choice.tall} is not taller than {choice.short}"
        )
    if problem.family == "host":
        check_host(name, problem, choice)


def check_host(name: str, problem: TileProblem, choice: TileChoice) -> None:
    """Require tiles that host kernels are compiled for."""
    from attnloom.jit.host_kernel import KernelConfig

    try:
        KernelConfig(
            dtype=problem.dtype,
            kv_dtype=problem.kv_dtype,
            out_dtype=problem.dtype,
            head_dim=problem.head_dim,
            head_dim_v=problem.head_dim_v,
            short=choice.short,
            tall=choice.tall,
        )
    except (AttnloomError, ValueError) as error:
        raise AssertionError(f"{name!r} chooses {choice} for {problem}: {error}") from error
