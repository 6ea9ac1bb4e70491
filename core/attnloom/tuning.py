"""Measuring tiles: the shapes that kernels of a device may have, on batches of the user's, in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime

import torch
from attrs import define, evolve, field, frozen
from attrs.validators import ge, in_, instance_of

from attnloom import __version__
from attnloom.builtin import AUTO
from attnloom.dtypes import torch_dtype
from attnloom.engines import long
from attnloom.errors import AttnloomError, UnsupportedError
from attnloom.limits import UNLIMITED, Limits
from attnloom.spec import AttentionSpec
from attnloom.tile import Tile, TileChoice, TileProblem
from attnloom.tile_table import Entry, problem_key

PAGE_SIZE = 16
"""Slots of a page of the caches that are measured on."""

MARGIN = 0.99
"""The core's rule stays in force unless other tiles take less than this share of its time."""

_FLUSHED_BYTES = 256 << 20  # more than the second-level cache of any device
_HOST_ROWS, _HOST_KEYS = (32, 64, 128), (32, 64, 128, 256)
_TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}


@frozen
class Batch:
    """Equal requests, measured together. Raises `ValueError` or `TypeError` for what is none.

    Attributes:
        kind: `"decode"` (one query token a request) or `"prefill"` (as many as keys).
        requests: how many.
        keys: of each.
    """

    kind: str = field(validator=in_(("decode", "prefill")))
    requests: int = field(validator=[instance_of(int), ge(1)])
    keys: int = field(validator=[instance_of(int), ge(1)])

    @property
    def name(self) -> str:
        """Such as `"decode 64x4096"`."""
        return f"{self.kind} {self.requests}x{self.keys}"


def usual_batches(device_type: str) -> list[Batch]:
    """What is measured on a `"cpu"` or `"cuda"` device where the user names no batch."""
    if device_type == "cpu":
        return [Batch("decode", 16, 1024), Batch("prefill", 2, 512)]
    return [Batch("decode", 64, 4096), Batch("decode", 16, 1024), Batch("prefill", 8, 2048)]


@define
class Candidate:
    """Tiles, and what came of measuring them.

    Attributes:
        tiles: what is measured.
        microseconds: of each batch, by its name: the least on a CPU, where other processes only add, else the median.
        fault: why these tiles are out of the question, or empty.
    """

    tiles: TileChoice
    microseconds: dict[str, float] = field(factory=dict)
    fault: str = ""

    def share_of(self, other: Candidate) -> float:
        """The geometric mean, over the batches, of the time taken over that of `other`. Neither may have a fault."""
        ratios = [self.microseconds[name] / other.microseconds[name] for name in other.microseconds]
        return math.exp(statistics.fmean(map(math.log, ratios)))


@frozen
class Tuning:
    """What `tune` found.

    Attributes:
        candidates: all that were measured or refused, the core's rule first.
        best: the fastest of those without fault; the rule's unless another is clearly faster.
        entry: what the tile table holds of it.
    """

    candidates: list[Candidate]
    best: Candidate
    entry: Entry


def tune(
    spec: AttentionSpec,
    device,
    batches: Sequence[Batch] = (),
    *,
    repeats: int = 20,
    on_progress: Callable[[str], None] = lambda told: None,
) -> Tuning:
    """Compile and measure the tiles that kernels of `spec` may have on `device`.

    Args:
        spec: what to compute; its `tile` does not count.
        device: where, as in `AttentionWrapper`.
        batches: what to measure on (none: `usual_batches`).
        repeats: runs of each candidate and batch; the candidates take turns.
        on_progress: told, in words, what is being done.

    Raises:
        UnsupportedError: a device that is not there, no kernel for `spec`, a batch that memory does not hold, or the
            core's own tiles cannot be measured.
        ParamError: wrong parameters. PlanError: `repeats` below 1. Others as `AttentionWrapper`.
    """
    from attnloom.compose import compose
    from attnloom.engines import device_of, positive
    from attnloom.targets import target_of
    from attnloom.tile_choice import problem_of

    repeats = positive("repeats", repeats, 1)
    device = device_of(device)
    target = target_of(device)
    batches = list(batches) or usual_batches(device.type)
    composition = compose(spec.variants, spec=spec, plugins=spec.plugin_set)
    composition.resolve(spec.params, device=str(device))
    problem = problem_of(spec, target, composition.functors)
    candidates = [Candidate(tiles) for tiles in tile_choices(spec, target, problem)]
    on_progress(f"compiling {len(candidates)} kernels")
    _compile([spec.evolve(tile=one.tiles) for one in candidates], target)
    for batch in batches:
        on_progress(f"measuring {batch.name}")
        with nullcontext() if device.type == "cpu" else torch.cuda.device(device):
            _bench(spec, device, batch, problem.functors).measure(candidates, repeats)
    best = fastest(candidates)
    entry = Entry(
        problem=problem_key(problem),
        short=best.tiles.short,
        tall=best.tiles.tall,
        microseconds=best.microseconds,
        rule=candidates[0].microseconds,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        version=__version__,
    )
    return Tuning(candidates, best, entry)


def tile_choices(spec: AttentionSpec, target, problem: TileProblem) -> Iterator[TileChoice]:
    """The choice of the core's rule, then others of two equally wide classes that kernels of `target` can be made with.

    Raises `UnsupportedError` where the rule knows no tiles of the target, or no kernel of it computes `spec`.
    """
    rule = AUTO.ask(problem)
    if rule is None:
        raise UnsupportedError(f"no tiles of the {target.family} family are known")
    target.config(spec, rule)
    seen = set()
    for tiles in (rule, *_combinations(target, problem.group)):
        shape = tiles.short, tiles.tall
        if shape not in seen and _is_possible(spec, target, tiles, problem.functors):
            seen.add(shape)
            yield TileChoice(short=tiles.short, tall=tiles.tall)


def _combinations(target, group: int) -> Iterator[TileChoice]:
    """A short and a tall class of as many keys; the smallest two short ones that hold a query token's heads."""
    if target.family == "host":
        rows, keys, shorts = _HOST_ROWS, _HOST_KEYS, [max(16, group)]
    else:
        from attnloom.jit.cuda_kernel import T_KV, T_Q

        rows, keys, shorts = T_Q, T_KV, [size for size in T_Q if size >= group][:2]
    for short in shorts:
        for family in target.families:
            for t_q in (size for size in rows if size > short):
                for t_kv in keys:
                    yield TileChoice(short=Tile(short, t_kv, target.family), tall=Tile(t_q, t_kv, family))


def _is_possible(spec: AttentionSpec, target, tiles: TileChoice, functors) -> bool:
    """Whether there is a kernel of these tiles that every wrapper of the problem can have, whatever its maxima."""
    try:
        target.check(spec, tiles, functors, Limits(levels=1))
    except (UnsupportedError, ValueError):
        return False
    return True


def _compile(specs: Sequence[AttentionSpec], target) -> None:
    """Build all kernels at a time; one that does not compile says so when it is opened."""
    from attnloom import jit
    from attnloom.kernel import describe

    try:
        jit.prepare([describe(spec, target)[2] for spec in specs], target.toolchain(False))
    except AttnloomError:
        return


def fastest(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate of the least time over all batches; the first, the rule's, unless another is clearly faster.

    Raises `UnsupportedError` where that of the rule has a fault.
    """
    rule = candidates[0]
    _require_measurable(rule)
    best = min((one for one in candidates if not one.fault), key=lambda one: one.share_of(rule))
    return best if best.share_of(rule) < MARGIN else rule


def _require_measurable(rule: Candidate) -> None:
    if rule.fault:
        raise UnsupportedError(f"the tiles of the core's rule cannot be measured: {rule.fault}")


def _bench(spec: AttentionSpec, device: torch.device, batch: Batch, functors) -> _Bench:
    try:
        return _Bench(spec, device, batch, functors)
    except (MemoryError, RuntimeError) as error:
        raise UnsupportedError(f"{batch.name} does not fit {device}: {str(error).splitlines()[0]}") from error


class _Bench:
    """One batch on a device: tensors, and the time of a run on them."""

    def __init__(self, spec: AttentionSpec, device: torch.device, batch: Batch, functors):
        from attnloom.dense import build_index

        self._batch, self._spec, self._device, self._functors = batch, spec, device, functors
        qo_lens = [1 if batch.kind == "decode" else batch.keys] * batch.requests
        self._index = build_index(qo_lens, [batch.keys] * batch.requests, PAGE_SIZE)
        pages = -(-batch.requests * batch.keys // PAGE_SIZE)
        generator = torch.Generator(device).manual_seed(0)

        def drawn(dtype: str, *shape: int):
            values = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
            return values.to(torch_dtype(dtype))

        self._q = drawn(spec.dtype, sum(qo_lens), spec.num_qo_heads, spec.head_dim)
        self._k = drawn(spec.kv_dtype, pages, PAGE_SIZE, spec.num_kv_heads, spec.head_dim)
        self._v = drawn(spec.kv_dtype, pages, PAGE_SIZE, spec.num_kv_heads, spec.head_dim_v)
        shape = (sum(qo_lens), spec.num_qo_heads, spec.head_dim_v)
        self._out = torch.empty(shape, dtype=torch_dtype(spec.out_dtype), device=device)
        self._flush = torch.empty(0 if device.type == "cpu" else _FLUSHED_BYTES, dtype=torch.uint8, device=device)

    def measure(self, candidates: Sequence[Candidate], repeats: int) -> None:
        """Fill in the microseconds of every candidate without fault, or a fault."""
        wrappers = {}
        expected = None
        for number, one in enumerate(candidates):
            if one.fault:
                continue
            try:
                wrapper = self._open(one.tiles)
            except (AttnloomError, RuntimeError) as error:
                one.fault = str(error).splitlines()[0]
                continue
            self._run(wrapper)
            expected = self._out.to(torch.float32, copy=True) if expected is None else expected
            if self._differs(expected):
                one.fault = f"another result than that of the core's tiles on {self._batch.name}"
            else:
                wrappers[number] = wrapper
        _require_measurable(candidates[0])
        times: dict[int, list[float]] = {number: [] for number in wrappers}
        for turn in range(repeats):
            order = list(wrappers)
            for number in order[turn % len(order) :] + order[: turn % len(order)]:
                times[number].append(self._time(wrappers[number]))
        settled = min if self._device.type == "cpu" else statistics.median
        for number, taken in times.items():
            candidates[number].microseconds[self._batch.name] = round(settled(taken), 2)

    def _open(self, tiles: TileChoice):
        from attnloom.wrapper import AttentionWrapper

        wrapper = AttentionWrapper(self._spec_of(tiles), self._device)
        wrapper.plan(self._index)
        return wrapper

    def _spec_of(self, tiles: TileChoice) -> AttentionSpec:
        """With these tiles, or those of the second kernel, where that would run the batch were these the core's."""
        second = None
        if long.is_long(self._index, self._spec.group):
            second = long.long_spec(self._spec, evolve(tiles, by=AUTO.name), self._functors, UNLIMITED)
        return second or self._spec.evolve(tile=tiles)

    def _run(self, wrapper) -> None:
        with torch.no_grad():
            wrapper.run(self._q, (self._k, self._v), out=self._out)

    def _differs(self, expected) -> bool:
        error = (self._out.float() - expected).norm() / expected.norm().clamp(min=1e-30)
        return not error.item() <= _TOLERANCE[self._spec.dtype]

    def _time(self, wrapper) -> float:
        """Microseconds of a run; on a GPU with a cold second-level cache."""
        if self._device.type == "cpu":
            begin = time.perf_counter()
            self._run(wrapper)
            return (time.perf_counter() - begin) * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        begin.record()
        self._run(wrapper)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3
