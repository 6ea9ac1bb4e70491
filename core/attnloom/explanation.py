"""Who supplied what of a computation, in which order, with which values, and what it was compiled to."""

from __future__ import annotations

import json
from typing import Any

from attrs import field, frozen

from attnloom.errors import UnsupportedError
from attnloom.spec import AttentionSpec


@frozen
class Explanation:
    """What `explain` found; `data` is plain (JSON), `str()` a page of text."""

    data: dict[str, Any] = field()

    def __str__(self) -> str:
        from attnloom.explanation_text import lines

        return "\n".join(lines(self.data))

    def __repr__(self) -> str:
        return str(self)


def explain(
    spec: AttentionSpec,
    *,
    arch: str | None = None,
    compile: bool = True,
    max_qo_len: int | None = None,
    max_kv_len: int | None = None,
    qo_len: int = 1,
    kv_len: int = 4096,
) -> Explanation:
    """Explain the kernel of `spec`.

    Args:
        arch: a CUDA architecture such as `"sm_90a"`, which need not be at hand; none: this host.
        compile: find or compile the kernel, to tell its path, key and time; false starts no compiler.
        max_qo_len, max_kv_len: as in `AttentionWrapper`: a tile heuristic may look at them.
        qo_len, kv_len: of the request whose visible intervals are told.

    Raises:
        As `attnloom.AttentionWrapper`.
    """
    from attnloom.kernel import describe
    from attnloom.limits import Limits
    from attnloom.targets import HOST, CudaTarget

    if not isinstance(spec, AttentionSpec):
        raise UnsupportedError(f"explain takes an attnloom.AttentionSpec, got {type(spec).__name__} {spec!r:.80}")
    target = HOST if arch is None else CudaTarget(arch)
    limits = Limits(qo_len=max_qo_len, kv_len=max_kv_len)
    composition, tiles, unit = describe(spec, target, limits)
    members = composition.explain()
    data = {
        "spec": _spec(spec),
        "variants": members["variants"],
        "functors": members["functors"],
        "suppliers": _suppliers(members),
        "use_softmax": composition.use_softmax,
        "params": _params(composition, spec),
        "settings": _settings(members, spec),
        "intervals": _intervals(composition, spec, qo_len, kv_len),
        "tiles": _tiles(tiles),
        "tile": _heuristic(spec, tiles),
        "long": _long(spec, tiles, composition.functors, limits),
        "kernel": {"name": unit.name, "detail": unit.detail, "source": dict(unit.sources)[target.source_name]},
    }
    if compile:
        data["kernel"].update(_artifact(spec, target, unit))
    return Explanation(data)


def _artifact(spec: AttentionSpec, target, unit) -> dict[str, Any]:
    from attnloom import jit

    artifact = jit.build(unit, target.toolchain(spec.debug), on_compiled=spec.plugin_set.notify_compiled)
    return {
        "key": artifact.key,
        "path": str(artifact.path),
        "source_path": str(artifact.path.parent / target.source_name),
        "cached": artifact.hit,
        "seconds": round(artifact.seconds, 4),
        "built": _built(artifact),
    }


def _built(artifact) -> dict[str, Any]:
    """When and by what the library was compiled, as its manifest tells."""
    from attnloom.jit import cache

    try:
        manifest = json.loads((artifact.path.parent / cache.MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return {name: manifest.get(name) for name in ("seconds", "compiler", "isa", "created")}


def _suppliers(members: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """For each functor, in the order of the chain, who supplies it."""
    by_alias = {member["alias"]: member for member in members["variants"]}
    told = ("alias", "variant", "plugin", "distribution", "version", "header", "struct")
    return {
        functor: [{name: by_alias[alias][name] for name in told} for alias in aliases]
        for functor, aliases in members["functors"].items()
    }


def _settings(members: dict[str, Any], spec: AttentionSpec) -> dict[str, dict[str, Any]]:
    """The settings in force of each plugin that supplies a variant and has any."""
    plugins = dict.fromkeys(m["plugin"] for m in members["variants"] if m["plugin"] not in (None, "core"))
    found = {plugin: dict(spec.plugin_set.settings(plugin)) for plugin in plugins}
    return {plugin: settings for plugin, settings in found.items() if settings}


def _intervals(composition, spec: AttentionSpec, qo_len: int, kv_len: int) -> dict[str, Any] | None:
    """What the ranges leave of a sample request; none where no variant has a range or a parameter is missing."""
    from attnloom.errors import ParamError

    if not composition.has_range:
        return None
    try:
        bound = composition.resolve(spec.params)
    except ParamError:
        return None
    from attnloom.intervals import sample_intervals

    return sample_intervals(composition, bound, spec.num_qo_heads, qo_len, kv_len)


def _spec(spec: AttentionSpec) -> dict[str, Any]:
    names = ("num_qo_heads", "num_kv_heads", "head_dim", "head_dim_v", "dtype", "kv_dtype", "out_dtype", "sm_scale")
    return {name: getattr(spec, name) for name in (*names, "batch_invariant", "debug")}


def _params(composition, spec: AttentionSpec) -> list[dict[str, Any]]:
    from attnloom.errors import ParamError
    from attnloom.variant import StaticParam

    try:
        values, fault = composition.resolve(spec.params).values, None
    except ParamError as error:
        values, fault = spec.params, str(error)
    rows = []
    for member in composition.members:
        for param in member.variant.params:
            key = f"{member.alias}.{param.name}"
            static = isinstance(param, StaticParam)
            value = member.statics[param.name] if static else values.get(key, getattr(param, "default", None))
            kind = "static" if static else "host" if getattr(param, "host_only", False) else "run time"
            if not static and "kv_range" in member.variant.functors and member.variant.is_planned(param):
                kind = "plan"
            given = "the spec" if key in spec.params else "computed" if getattr(param, "computed", None) else "default"
            rows.append({"name": key, "value": _plain(value), "set": kind, "from": given, "doc": param.doc})
    if fault:
        for row in [row for row in rows if repr(row["name"]) in fault] or rows:
            row["error"] = fault
    return rows


def _plain(value):
    if hasattr(value, "shape"):
        dtype = getattr(value, "owner", value).dtype
        return {"shape": list(value.shape), "dtype": str(dtype).removeprefix("torch.")}
    if isinstance(value, float):
        import numpy as np

        return float(str(np.float32(value)))
    return value


def _tiles(tiles) -> dict[str, Any]:
    classes = {name: tile for name, tile in (("short", tiles.short), ("tall", tiles.tall)) if tile is not None}
    return {**{name: _tile(tile) for name, tile in classes.items()}, "why": list(tiles.why)}


def _tile(tile) -> dict[str, Any]:
    return {"t_q": tile.t_q, "t_kv": tile.t_kv, "family": tile.family}


def _long(spec: AttentionSpec, tiles, functors, limits) -> dict[str, Any] | None:
    """The tall tile of a wrapper's second kernel, and the batches `for` which it runs; none where it has one."""
    from attnloom.engines import long

    second = long.long_spec(spec, tiles, functors, limits)
    return None if second is None else {**_tile(second.tile.tall), "for": long.BATCHES}


def _heuristic(spec: AttentionSpec, tiles) -> dict[str, Any]:
    """Who chose the tiles: `asked` the heuristic that the spec or the configuration wants, `by` the one whose choice
    it is, with the plugin of that one."""
    if not isinstance(spec.tile, str):
        return {"chosen_by": "the spec"}
    plugins = spec.plugin_set
    provider = plugins.provider("tile_heuristic", tiles.by) if tiles.by != "auto" else plugins.records()[0]
    return {
        "chosen_by": f"tile heuristic {tiles.by!r}",
        "asked": plugins.tile_heuristic(spec.tile).name,
        "by": tiles.by,
        "plugin": provider.name,
        "distribution": provider.distribution,
        "version": provider.version,
    }
