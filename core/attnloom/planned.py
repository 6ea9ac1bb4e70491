"""One plan and the kernel arguments that refer to it.

A wrapper has two of each of its kernels, each with its planner (which keeps two plans, a composed and a single one):
one in force, and one for the next batch, so that whatever fails on the way leaves the first whole.
"""

from __future__ import annotations

import ctypes
import functools
import math

from attnloom.abi import ARGS_ABI, IndexBytes, RunArgs
from attnloom.dtypes import CODES, DTYPE_BYTES
from attnloom.errors import PlanError, RunError
from attnloom.index import ComposedIndex
from attnloom.spec import AttentionSpec
from attnloom.variant import TensorParam
from attnloom.views import IndexViewer

INVARIANT_KEYS = 1024
"""Keys of a chunk of a batch-invariant plan, rounded up to a multiple of every tile."""

_ALIGNED = 256

_WIDE_KEY = 512
"""Bytes of a key and its value under one kv head from which one block keeps the memory busy for its multiprocessor."""

_WORK_ON_KEYS = {"key_transform", "value_transform", "logits_transform", "logits_mask"}
"""Functors whose work a block alone on its multiprocessor does not hide behind its loads."""


@functools.cache
def _scheduler_library():
    from attnloom import jit

    return jit.scheduler_library()


class Planned:
    """The arguments of one kernel for one batch.

    Attributes:
        args: the `RunArgs`; they and all they point to live as long as this object.
        index_bytes: sizes of the index's arrays, for an upload.
        index: the planned index, composed or single, whichever is predicted to be faster.
        bound: the parameters in force.
        num_tokens: query tokens of the planned index.
        keys_bytes: what keys take that are transformed ahead, at the front of the workspace; 0: none are.
        use_softmax: whether the variants use a softmax, so that rows have an LSE.
        view: what the planner says of the plan.
        enough_pages: a cache of as many holds every page of the index; infinite as long as none was looked at.
    """

    def __init__(self, spec: AttentionSpec, engine):
        from attnloom_scheduler.planner import Planner

        self._planner = Planner(_scheduler_library())
        self.args, self.index_bytes = RunArgs(), IndexBytes()
        self.args_address = ctypes.addressof(self.args)
        self.index_bytes_address = ctypes.addressof(self.index_bytes)
        self._viewer = IndexViewer(self.args, self.index_bytes, spec.num_kv_heads, engine.device)
        self._spec, self._keeps_addresses = spec, engine.keeps_addresses
        self._row_bytes = 4 * (spec.head_dim_v + 2)
        self.use_softmax = engine.kernel.composition.use_softmax
        self.index: ComposedIndex | None = None
        self.view = None
        self.bound = None
        self._rebound: tuple | None = None
        self._pointed_to: tuple | None = None
        self.enough_pages: float = math.inf
        self.num_tokens = self.keys_bytes = 0
        self._ahead, self._room, self._left = None, 0, 0
        self._key_bytes = spec.num_kv_heads * spec.head_dim * DTYPE_BYTES[spec.dtype]
        self._set_constants(engine)
        self._input = _plan_input(spec, engine, self.args)
        self._range_fn = self._input.range_fn
        self._workers_per_processor = self._input.workers_per_processor
        self._reread = _costs_of(engine.kernel.tiles.short).reread

    def _set_constants(self, engine) -> None:
        spec, args = self._spec, self.args
        args.abi = ARGS_ABI
        args.num_qo_heads, args.num_kv_heads = spec.num_qo_heads, spec.num_kv_heads
        args.head_dim, args.head_dim_v = spec.head_dim, spec.head_dim_v
        args.dtype, args.kv_dtype, args.out_dtype = CODES[spec.dtype], CODES[spec.kv_dtype], CODES[spec.out_dtype]
        args.sm_scale = spec.sm_scale
        args.device, args.spare_rows = engine.device.index or 0, engine.spare_rows

    @property
    def workspace_bytes(self) -> int:
        """Bytes that a run writes: of keys transformed ahead, and of partial states behind them."""
        return self.keys_bytes + self._part_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes that a workspace holds for the plan, with what is left to partial states of later ones."""
        return (self._room or self.keys_bytes) + max(self._part_bytes, self._left)

    @property
    def _part_bytes(self) -> int:
        return self.view.num_part_rows * self._row_bytes

    def bind(self, bound) -> None:
        """Take the parameters of the plan to come."""
        if bound is not self.bound:
            self.bound = bound
            self._rebound = None

    def plan(self, index: ComposedIndex, *, every_key: bool = False) -> None:
        """Plan `index`: as it is composed, or as a single level where that is predicted to be faster.

        Args:
            index: the batch.
            every_key: skip no key by the variants' ranges: the lengths are bounds, and positions depend on them.

        Raises:
            PlanError, UnsupportedError: the batch cannot be planned.
        """
        self.args.params, self._pointed_to = self.bound.address, None
        self._input.range_fn = None if every_key else self._range_fn
        # What requests share comes from the cache, and is read again.
        self._input.workers_per_processor = self._workers_per_processor if index.single is None else 1
        if index.single is None:
            if self._spec.batch_invariant and len(index.levels) > 1:
                raise PlanError(
                    f"the spec says batch_invariant=True, which plans one level, but this index has "
                    f"{len(index.levels)} and no single form, as tree_attention's: "
                    "use a spec with batch_invariant=False"
                )
            view, chosen = self._plan_one(index), index
        elif self._spec.batch_invariant:
            view, chosen = self._plan_one(index.single), index.single
        else:
            view, chosen = self._plan_one(index.single), index.single
            composed = self._plan_one(index)
            if composed.makespan < view.makespan * self._cost_of_rereading(index):
                view, chosen = composed, index
            else:
                self._viewer.write(chosen)
        self.view, self.index = view, chosen
        self.num_tokens = chosen.num_tokens
        if self._ahead is not None:
            self.transform_ahead(None)
        self.enough_pages = math.inf

    def transform_ahead(self, ahead, *, room: int = 0, left: int = 0) -> None:
        """Let the plan's keys be transformed by a kernel before that of attention.

        Args:
            ahead: its keys, as `engines.keys_ahead.KeysAhead`; none: units transform those that they load.
            room: bytes before partial states in the graph that captured a run; 0: there is none.
            left: bytes at the end of the workspace for partial states, all before which is room for keys; 0: partial
                states follow the plan's keys.
        """
        view = self.args.index
        self._ahead, self.keys_bytes, view.ahead = ahead, 0, None
        self._room, self._left = (room, left) if ahead is not None else (0, 0)
        if ahead is not None:
            self.keys_bytes = max(ahead.slots, 1) * self._key_bytes  # there is an address, if nothing behind it
            view.ahead, view.num_ahead = ahead.rows.ctypes.data, len(ahead.rows) - 1

    def _cost_of_rereading(self, index: ComposedIndex) -> float:
        """What the single form of `index` costs of what is planned, since keys that requests share are loaded again."""
        once = sum(int(level.kv_len.sum()) for level in index.levels)
        every = int(index.single.kv_len.sum())
        return (once + self._reread * (every - once)) / every if every > once else 1.0

    def _plan_one(self, index: ComposedIndex):
        self._viewer.write(index)
        return self._planner.plan(self._input)

    def rebind(self, params: dict):
        """The parameters of a run that gives `params` over the plan's.

        Raises:
            ParamError: wrong names or values. RunError: a value that the plan depends on differs.
        """
        key = _scalar_key(params)
        if key is not None and self._rebound is not None and self._rebound[0] == key:
            return self._rebound[1]
        bound = self.bound.replace(params)
        if bound.planned != self.bound.planned:
            raise RunError(_changed(self.bound.planned, bound.planned))
        self._rebound = (key, bound)
        return bound

    def check_pages(self, pages: int) -> None:
        """Look at the page ids. Raises `IndexFormatError` where one is past a cache of `pages` pages."""
        self.index.check_pages(pages)
        self.enough_pages = pages

    def point_to(self, workspace, bound, scales: tuple) -> None:
        """Let the kernel find its parameters, scales, keys transformed ahead, and partial states.

        Args:
            workspace: of at least `workspace_bytes`.
            bound: the parameters.
            scales: of K and of V, as `scale_of` gives them.
        """
        wanted = (workspace.address, workspace.nbytes, bound.address, scales)
        if wanted == self._pointed_to:
            return
        args, rows, room = self.args, self.view.num_part_rows, self._room_in(workspace.nbytes)
        if self._keeps_addresses:
            rows = (workspace.nbytes - room) // self._row_bytes
        partials = workspace.address + room
        args.keys_ahead = None if self._ahead is None else workspace.address
        args.partial_o, args.partial_md = partials, partials + 4 * rows * self._spec.head_dim_v
        args.params = bound.address
        args.k_scale, args.v_scale = scales
        self._pointed_to = wanted

    def _room_in(self, nbytes: int) -> int:
        """Bytes before the partial states in a workspace of `nbytes`."""
        if self._left == 0:
            return self._room or self.keys_bytes
        return max(self.keys_bytes, (nbytes - max(self._part_bytes, self._left)) // _ALIGNED * _ALIGNED)


class Side:
    """A kernel of a wrapper, with what plans for it need.

    Attributes:
        engine: that runs the kernel.
        binding: the parameters of its plans.
    """

    def __init__(self, spec: AttentionSpec, engine):
        self.engine, self.binding = engine, Binding(spec, engine)
        self._spec = spec
        self._plans = [Planned(spec, engine)]

    def spare(self, in_force: Planned | None) -> Planned:
        """A plan to make anew, other than the one in force."""
        for planned in self._plans:
            if planned is not in_force:
                return planned
        self._plans.append(Planned(self._spec, self.engine))
        return self._plans[-1]


class Binding:
    """The parameters of a wrapper's plans: what the spec gives is checked, converted and put on the device once."""

    def __init__(self, spec: AttentionSpec, engine):
        self._spec, self._composition, self._device = spec, engine.kernel.composition, str(engine.device)
        self._own = None

    def bind(self, params: dict | None):
        """The spec's parameters, with `params` over them. Raises `ParamError`."""
        if self._own is None:
            if params is not None:  # the spec's alone may lack what a plan has to give
                return self._resolve({**self._spec.params, **params})
            self._own = self._resolve(self._spec.params)
        return self._own.replace(params)

    def _resolve(self, params: dict):
        return self._composition.resolve(params, device=self._device)


def _costs_of(tile):
    from attnloom_scheduler import costs

    return costs.TABLE[tile.family]


def _plan_input(spec: AttentionSpec, engine, args: RunArgs):
    from attnloom_scheduler import costs
    from attnloom_scheduler.inputs import PlanInput

    kernel = engine.kernel
    short = _costs_of(kernel.tiles.short)
    itemsize = DTYPE_BYTES[spec.kv_dtype]
    dims = {"head_dim": spec.head_dim, "head_dim_v": spec.head_dim_v, "kv_itemsize": itemsize}
    tiles = [tile for tile in (kernel.tiles.short, kernel.tiles.tall) if tile is not None]
    inputs = PlanInput(
        num_workers=engine.num_workers,
        num_kv_heads=spec.num_kv_heads,
        group=spec.group,
        workers_per_processor=engine.workers_per_processor if _waits_for_memory(spec, kernel.composition) else 1,
        batch_invariant_chunk=_invariant_chunk(tiles) if spec.batch_invariant else 0,
        merge_base=short.merge_base,
        gamma=costs.merge_row(short, spec.head_dim_v),
        cache_bytes=short.cache_bytes,
        kv_bytes_per_key=(spec.head_dim + spec.head_dim_v) * itemsize,
        classes=[costs.tile_class(_costs_of(tile), tile.t_q, tile.t_kv, rows=tile.t_q, **dims) for tile in tiles],
        index=ctypes.addressof(args.index),
    )
    if kernel.ranges and (engine.reads_param_tensors or not _plans_by_tensors(kernel.composition)):
        inputs.range_fn, inputs.range_ctx = kernel.ranges, ctypes.addressof(args)
    return inputs


def _waits_for_memory(spec: AttentionSpec, composition) -> bool:
    """Whether one worker reads as fast as all of its processor: keys are wide, and little is done with each."""
    wide = (spec.head_dim + spec.head_dim_v) * DTYPE_BYTES[spec.kv_dtype] >= _WIDE_KEY
    return wide and not composition.functors & _WORK_ON_KEYS


def _plans_by_tensors(composition) -> bool:
    """Whether a `kv_range` reads a tensor."""
    return any(
        isinstance(param, TensorParam) and member.variant.is_planned(param)
        for member in composition.members
        for param in member.variant.params
    )


def _invariant_chunk(tiles) -> int:
    step = math.lcm(*(tile.t_kv for tile in tiles))
    return step * -(-INVARIANT_KEYS // step)


def _scalar_key(params: dict):
    if all(isinstance(value, (int, float, str)) for value in params.values()):
        return tuple(params.items())
    return None


def _changed(planned, given) -> str:
    before = dict(planned)
    changed = [
        f"{name} was planned as {_shown(before[name])}, this run gives {_shown(value, before[name])}"
        for name, value in given
        if before[name] != value
    ]
    return (
        f"{'; '.join(changed)}: a kv_range may read it, by which the plan skips keys. Give it to "
        "plan(index, params=...), use another wrapper, or declare planned=False of a parameter that no kv_range reads"
    )


def _shown(value, before=None) -> str:
    if not isinstance(value, tuple):
        return repr(value)
    return f"{'another' if before is not None and before[0] == value[0] else 'a'} tensor {list(value[0])}"
