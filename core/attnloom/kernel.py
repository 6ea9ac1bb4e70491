"""From a spec to a loaded kernel: compose, choose tiles, generate, compile or find, load; remembered."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from attrs import frozen

from attnloom import tile_table
from attnloom.limits import UNLIMITED, Limits
from attnloom.spec import AttentionSpec
from attnloom.targets import HOST
from attnloom.tile import TileChoice
from attnloom.tile_choice import choose_tiles

_REMEMBERED = 256


@frozen(eq=False)
class Kernel:
    """A compiled kernel and what it was made from.

    Attributes:
        target: what it is compiled for.
        composition: the composed variants (names, order, parameters, C++ text).
        tiles: the tile classes chosen and why.
        unit: what was compiled; `artifact` where it lies and whether it was found in the cache.
        handle: the loaded library.
        run: the launcher, `run(args_address, q, k, v, out, lse | None)`; a CUDA kernel's takes a stream as well.
        ranges: address of the kernel's range function for the planner; 0 where no variant limits the keys.
    """

    spec: AttentionSpec
    target: Any
    composition: Any
    tiles: TileChoice
    unit: Any
    artifact: Any
    handle: Any
    run: Callable
    ranges: int


_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """Another thread of the parent may have held the lock, and is not here to release it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
_kernels: OrderedDict[tuple, Kernel] = OrderedDict()


def open_kernel(spec: AttentionSpec, target=HOST, limits: Limits = UNLIMITED) -> Kernel:
    """The kernel of `spec` for `target`: opened before, found in the cache, or compiled now.

    Args:
        spec: what to compute.
        target: what on.
        limits: the wrapper's maxima, which may decide the tiles.

    Raises:
        UnknownNameError, PluginError, CompositionError, ParamError: wrong variants or parameters.
        UnsupportedError: a dtype, head dim or tile that no kernel of the target has.
        CompileError: no compiler, or a variant's code does not compile; names the plugin, its file and line.
    """
    plugins = spec.plugin_set
    if spec.read_now():  # functions may have been rebound what they read, and what they capture is not kept alive
        return _open(spec, target, limits)
    key = (spec, target, id(plugins), limits.qo_len, limits.kv_len, limits.any, tile_table.stamp())
    with _lock:
        if (known := _kernels.get(key)) is not None:
            _kernels.move_to_end(key)
            return known
    kernel = _open(spec, target, limits)
    with _lock:
        _kernels[key] = kernel
        while len(_kernels) > _REMEMBERED:
            _kernels.popitem(last=False)
    return kernel


def open_composed(spec: AttentionSpec, target, composition) -> Kernel:
    """The kernel of `spec` for `target` of what is composed already: other tiles have the same functors.

    Raises `UnsupportedError` and `CompileError` as `open_kernel`.
    """
    tiles = choose_tiles(spec, target, composition.functors, spec.plugin_set)
    return _load(spec, target, composition, tiles, _unit(spec, target, composition, tiles))


def describe(spec: AttentionSpec, target=HOST, limits: Limits = UNLIMITED):
    """`(composition, tiles, unit)` of a spec's kernel, without compiling it. Raises as `open_kernel`."""
    from attnloom.compose import compose

    plugins = spec.plugin_set
    composition = compose(spec.variants, spec=spec, plugins=plugins)
    tiles = choose_tiles(spec, target, composition.functors, plugins, limits)
    return composition, tiles, _unit(spec, target, composition, tiles)


def _unit(spec: AttentionSpec, target, composition, tiles: TileChoice):
    from attnloom import jit

    aliases = "_".join(member.alias for member in composition.members) or "plain"
    return jit.CompileUnit(
        name=f"{target.name}_{aliases}_{spec.dtype}_{spec.kv_dtype}_d{spec.head_dim}"[:100],
        sources={target.source_name: target.source(spec, composition, tiles)},
        include_dirs=list(dict.fromkeys([*composition.include_dirs, *jit.include_dirs()])),
        owners=composition.owners,
        detail=tiles.shape,
    )


def _open(spec: AttentionSpec, target, limits: Limits) -> Kernel:
    return _load(spec, target, *describe(spec, target, limits))


def _toolchain(spec: AttentionSpec, target, unit):
    """The compiler for a unit that is not shipped. Raises `CompileError`, which names the unit and where it was not."""
    from attnloom.errors import CompileError
    from attnloom.jit.shipped import VARIABLE

    try:
        return target.toolchain(spec.debug)
    except CompileError as error:
        if not (searched := os.environ.get(VARIABLE)) or spec.debug:
            raise
        raise CompileError(
            f"{unit.title} for {target} is not in {searched} ({VARIABLE}), and cannot be compiled: {error}"
        ) from error


def _load(spec: AttentionSpec, target, composition, tiles: TileChoice, unit) -> Kernel:
    from attnloom import jit

    artifact = None if spec.debug else target.shipped(unit)
    if artifact is None:
        toolchain = _toolchain(spec, target, unit)
        (artifact,) = jit.prepare([unit], toolchain, on_compiled=spec.plugin_set.notify_compiled)
    handle = jit.load(artifact)
    ranges = handle.symbol("attnloom_ranges") if composition.has_range else 0
    return Kernel(spec, target, composition, tiles, unit, artifact, handle, handle.run, ranges)
