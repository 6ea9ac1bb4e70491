"""Which tiles a kernel gets: the spec's, those of a tile heuristic, or the core's where that one does not deliver.

The core's are those that were measured for the problem, or what its rule says.
"""

from __future__ import annotations

from attrs import evolve

from attnloom import tile_table
from attnloom.errors import ConfigError, PluginError, UnsupportedError
from attnloom.limits import UNLIMITED, Limits
from attnloom.plugins.discovery import describe
from attnloom.spec import AttentionSpec
from attnloom.tile import TileChoice, TileHeuristic, TileProblem


def choose_tiles(spec: AttentionSpec, target, functors, plugins, limits: Limits = UNLIMITED) -> TileChoice:
    """The tile classes of `spec` on `target`, with the trail of why.

    A heuristic that raises, or returns what no kernel of such variants and maxima has, and a tile table that cannot be
    used are warned of once and the core's rule decides: tiles change the time that a computation takes, never what it
    computes.

    Args:
        spec: what to compute.
        target: a `HostTarget` or a `CudaTarget`.
        functors: names that the composed variants define.
        plugins: the `PluginSet` that a heuristic is looked up in.
        limits: the wrapper's maxima.

    Raises:
        UnsupportedError, ValueError: tiles given by the spec that no such kernel has; no tiles would do; or no rule
            knows the target.
        PluginError: a failing heuristic of a plugin that the configuration names, or any under `strict`.
    """
    if not isinstance(spec.tile, str):
        return _given(spec, target, functors, limits)
    problem = problem_of(spec, target, functors, limits)
    from attnloom.builtin import AUTO

    def check(choice) -> None:
        require_kernel(choice, spec, target, functors, limits)

    heuristic = plugins.tile_heuristic(spec.tile)
    trail: list[str] = []
    if heuristic is not AUTO:
        choice, trail = _ask_plugin(heuristic, problem, check, target, plugins)
        if choice is not None:
            return choice
    choice, reason = _measured(problem, check, plugins)
    if choice is None:
        choice, trail = _rule(problem, check, target), [*trail, *reason]
    return evolve(choice, by=AUTO.name, why=(*trail, *choice.why))


def problem_of(spec: AttentionSpec, target, functors, limits: Limits = UNLIMITED) -> TileProblem:
    """What a tile heuristic is told of `spec` on `target`."""
    return TileProblem(
        family=target.family,
        device=target.device,
        dtype=spec.dtype,
        kv_dtype=spec.kv_dtype,
        head_dim=spec.head_dim,
        head_dim_v=spec.head_dim_v,
        num_qo_heads=spec.num_qo_heads,
        num_kv_heads=spec.num_kv_heads,
        functors=frozenset(functors),
        max_qo_len=limits.qo_len,
        max_kv_len=limits.kv_len,
        device_name=target.device_name,
        families=target.families,
    )


def require_kernel(choice, spec: AttentionSpec, target, functors, limits: Limits) -> None:
    """Raise for a choice that no kernel of `target` can be made with, whose variants define `functors`, in a wrapper of
    these maxima: TypeError, UnsupportedError, or ValueError."""
    if not isinstance(choice, TileChoice):
        raise TypeError(f"it returned {choice!r}, which is no TileChoice")
    for tile in filter(None, (choice.short, choice.tall)):
        if tile.family not in target.families:
            raise UnsupportedError(
                f"tile family {tile.family!r} does not run on {target}; there it is {_either(target.families)}"
            )
    rows = (choice.tall or choice.short).t_q
    if rows < spec.group:
        shared = f"{spec.group} query heads share a kv head"
        if target.most_rows is not None and target.most_rows < spec.group:
            raise UnsupportedError(
                f"{shared}, but kernels of {target} hold at most {target.most_rows} packed rows a tile"
            )
        raise UnsupportedError(f"the largest tile has t_q {rows}, but {shared}: take a t_q of at least {spec.group}")
    target.check(spec, choice, functors, limits)


def _rule(problem: TileProblem, check, target) -> TileChoice:
    """What the core's rule chooses. Raises where that, and so any tiles, cannot be."""
    from attnloom.builtin import AUTO

    choice = AUTO.ask(problem)
    if choice is None:
        raise UnsupportedError(f"no tile heuristic chooses tiles of the {target.family} family: give tile=Tile(...)")
    check(choice)
    return choice


def _measured(problem: TileProblem, check, plugins) -> tuple[TileChoice | None, list[str]]:
    """What the tile table holds for the problem, none if nothing that can be used; and what is to be said of that."""
    try:
        choice = tile_table.choose(problem)
        if choice is not None:
            check(choice)
        return choice, []
    except (ConfigError, UnsupportedError, ValueError) as error:
        told = f"the tile table is ignored: {error}"
    plugins.warn_once(told)
    return None, [told]


def _given(spec: AttentionSpec, target, functors, limits: Limits) -> TileChoice:
    given = spec.tile if isinstance(spec.tile, TileChoice) else TileChoice(short=spec.tile)
    require_kernel(given, spec, target, functors, limits)
    return evolve(given, why=["given by the spec"], by="")


def _ask_plugin(
    heuristic: TileHeuristic, problem: TileProblem, check, target, plugins
) -> tuple[TileChoice | None, list[str]]:
    """What a plugin's rule chooses, none if it does not; and what is to be said of that."""
    record = plugins.provider("tile_heuristic", heuristic.name)
    who = f"tile heuristic {heuristic.name!r} of {record.label}"
    choice = None
    try:
        choice = heuristic.ask(problem)
        if choice is None:
            return None, [f"{who} had no opinion; the core's rule decides"]
        check(choice)
        return evolve(choice, by=heuristic.name), []
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        fault, cause = describe(error), error
    if isinstance(choice, TileChoice):
        fault = f"it chose {choice.shape}: {fault}"
    _rule(problem, check, target)  # raises where no tiles would do, which is no fault of the plugin's
    if plugins.config.strict or record.named:
        raise PluginError(f"{who} failed: {fault}") from cause
    plugins.warn_once(f"{who} failed and the core's rule decides: {fault}")
    return None, [f"{who} failed: {fault}; the core's rule decides"]


def _either(families) -> str:
    return " or ".join(map(repr, families))
