"""Tile classes and the heuristics that choose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from attnloom.errors import UnsupportedError
from attnloom.resolve import resolve


@frozen
class Tile:
    """The shape of one work item.

    Attributes:
        t_q: rows of packed queries (query tokens x GQA group) an item holds at most.
        t_kv: keys that are processed at a time; every split point is a multiple of it.
        family: the kernel family that runs it: `"host"`, or on CUDA devices `"mma"` or, where there is one, `"wgmma"`.

    Raises:
        UnsupportedError: sizes that are no integers of at least 1, or a family that is no string.
    """

    t_q: int = field()
    t_kv: int = field()
    family: str = field(default="host")

    @t_q.validator
    @t_kv.validator
    def _positive(self, attribute, value):
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedError(f"Tile.{attribute.name} must be an integer, got {value!r}")
        if value < 1:
            raise UnsupportedError(f"Tile.{attribute.name} must be at least 1, got {value}")

    @family.validator
    def _is_name(self, attribute, value):
        if not isinstance(value, str):
            raise UnsupportedError(f"Tile.{attribute.name} must be the name of a kernel family, got {value!r}")


@frozen(kw_only=True)
class TileProblem:
    """What a tile heuristic is told. Never the batch at hand: a choice outlives the batches it serves.

    Attributes:
        family: the kernel family that every tile may be of: `"host"` or `"mma"`.
        families: all that tiles may be of on this device.
        device: `"cpu"`, or a CUDA architecture without its letter, such as `"sm_90"`.
        device_name: the model, such as `"NVIDIA H200"`; empty where none is at hand.
        functors: names (of `attnloom.variant.FUNCTORS`) that the composed variants define.
        max_qo_len, max_kv_len: the wrapper's maxima, in tokens of a request; none: no bound.
        Others as in the spec.
    """

    family: str
    device: str
    dtype: str
    kv_dtype: str
    head_dim: int
    head_dim_v: int
    num_qo_heads: int
    num_kv_heads: int
    functors: frozenset[str]
    max_qo_len: int | None = None
    max_kv_len: int | None = None
    device_name: str = ""
    families: Sequence[str] = field(converter=tuple, default=())

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.num_qo_heads // self.num_kv_heads


def _sentences(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@frozen(kw_only=True)
class TileChoice:
    """One short and at most one tall tile class.

    Attributes:
        short, tall: the classes; a tall tile holds no fewer rows than a short one.
        why: the reasons, a sentence each, or one alone. Choices of the same tiles are equal, whatever the reasons.
        by: the heuristic whose choice it is, which the core fills in; empty for tiles that a spec gives.

    Raises:
        UnsupportedError: what is no `Tile`, or a tall one of fewer rows.
    """

    short: Tile = field()
    tall: Tile | None = field(default=None)
    why: Sequence[str] = field(converter=_sentences, default=(), eq=False)
    by: str = field(default="", eq=False)

    @property
    def shape(self) -> str:
        """Such as `"mma 16x64 + wgmma 128x64"`."""
        short, tall = self.short, self.tall
        shown = f"{short.family} {short.t_q}x{short.t_kv}"
        if tall is None:
            return shown
        return f"{shown} + {'' if tall.family == short.family else f'{tall.family} '}{tall.t_q}x{tall.t_kv}"

    @short.validator
    def _is_tile(self, attribute, value):
        if not isinstance(value, Tile):
            raise UnsupportedError(f"TileChoice.{attribute.name} must be a Tile, got {value!r}")

    @tall.validator
    def _is_taller(self, attribute, value):
        if value is None:
            return
        self._is_tile(attribute, value)
        if value.t_q < self.short.t_q:
            raise UnsupportedError(f"the tall tile's t_q {value.t_q} is less than the short tile's {self.short.t_q}")


@frozen(kw_only=True)
class TileHeuristic:
    """A named rule `TileProblem -> TileChoice | None` (none: no opinion, the core's rule decides).

    Attributes:
        choose: `"module:fn"`, called as `fn(problem, **options)`; resolved when first used.
        options: keyword arguments of the function, such as the plugin's settings.
    """

    name: str
    choose: str
    doc: str = ""
    options: Mapping[str, Any] = field(factory=dict, converter=dict)

    def ask(self, problem: TileProblem) -> TileChoice | None:
        """What the rule chooses, unchecked; raises whatever it raises."""
        return resolve(self.choose)(problem, **self.options)
