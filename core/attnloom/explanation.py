"""Who supplied what of a computation, in which order, with which values, and what it was compiled to."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from attnloom.spec import AttentionSpec


@frozen
class Explanation:
    """What `explain` found; `data` is plain (JSON), `str()` a page of text."""

    data: dict[str, Any] = field()

    def __str__(self) -> str:
        return "\n".join(_lines(self.data))

    def __repr__(self) -> str:
        return str(self)


def explain(
    spec: AttentionSpec,
    *,
    arch: str | None = None,
    compile: bool = True,
    max_qo_len: int | None = None,
    max_kv_len: int | None = None,
) -> Explanation:
    """Explain the kernel of `spec`.

    Args:
        arch: a CUDA architecture such as `"sm_90a"`, which need not be at hand; none: this host.
        compile: find or compile the kernel, to tell its path, key and time; false starts no compiler.
        max_qo_len, max_kv_len: as in `AttentionWrapper`: a tile heuristic may look at them.

    Raises:
        As `attnloom.AttentionWrapper`.
    """
    from attnloom.kernel import describe
    from attnloom.targets import HOST, CudaTarget

    target = HOST if arch is None else CudaTarget(arch)
    composition, tiles, unit = describe(spec, target, max_qo_len=max_qo_len, max_kv_len=max_kv_len)
    members = composition.explain()
    data = {
        "spec": _spec(spec),
        "variants": members["variants"],
        "functors": members["functors"],
        "use_softmax": composition.use_softmax,
        "params": _params(composition, spec),
        "tiles": _tiles(tiles),
        "tile": _heuristic(spec),
        "kernel": {"name": unit.name, "source": dict(unit.sources)[target.source_name]},
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
    }


def _spec(spec: AttentionSpec) -> dict[str, Any]:
    names = ("num_qo_heads", "num_kv_heads", "head_dim", "head_dim_v", "dtype", "kv_dtype", "out_dtype", "sm_scale")
    return {name: getattr(spec, name) for name in (*names, "batch_invariant", "debug")}


def _params(composition, spec: AttentionSpec) -> list[dict[str, Any]]:
    from attnloom.errors import ParamError
    from attnloom.variant import StaticParam

    try:
        values, missing = composition.resolve(spec.params).values, None
    except ParamError as error:
        values, missing = {}, str(error)
    rows = []
    for member in composition.members:
        for param in member.variant.params:
            key = f"{member.alias}.{param.name}"
            static = isinstance(param, StaticParam)
            value = member.statics[param.name] if static else values.get(key)
            kind = "static" if static else "host" if getattr(param, "host_only", False) else "run time"
            if not static and "kv_range" in member.variant.functors and member.variant.is_planned(param):
                kind = "plan"
            rows.append({"name": key, "value": _plain(value), "set": kind, "doc": param.doc})
            if missing and not static:
                rows[-1]["error"] = missing
    return rows


def _plain(value):
    if hasattr(value, "shape"):
        dtype = getattr(value, "owner", value).dtype
        return {"shape": list(value.shape), "dtype": str(dtype).removeprefix("torch.")}
    return value


def _tiles(tiles) -> dict[str, Any]:
    classes = {name: tile for name, tile in (("short", tiles.short), ("tall", tiles.tall)) if tile is not None}
    return {
        **{name: {"t_q": tile.t_q, "t_kv": tile.t_kv, "family": tile.family} for name, tile in classes.items()},
        "why": list(tiles.why),
    }


def _heuristic(spec: AttentionSpec) -> dict[str, Any]:
    if not isinstance(spec.tile, str):
        return {"chosen_by": "the spec"}
    provider = spec.plugin_set.provider("tile_heuristic", spec.tile)
    return {
        "chosen_by": f"tile heuristic {spec.tile!r}",
        "plugin": provider.name,
        "distribution": provider.distribution,
        "version": provider.version,
    }


def _lines(data: dict[str, Any]):
    spec = data["spec"]
    yield (
        f"{spec['num_qo_heads']} query heads over {spec['num_kv_heads']} kv heads, head dim {spec['head_dim']}"
        f"{'' if spec['head_dim_v'] == spec['head_dim'] else ' (v ' + str(spec['head_dim_v']) + ')'}, {spec['dtype']}"
        f"{'' if spec['kv_dtype'] == spec['dtype'] else ' over a cache of ' + spec['kv_dtype']}, "
        f"sm_scale {spec['sm_scale']:.6g}"
    )
    yield "\nvariants, in order:"
    for place, member in enumerate(data["variants"], 1):
        name = member["variant"] if member["alias"] == member["variant"] else f"{member['alias']} = {member['variant']}"
        source = f"{member['distribution']} {member['version']}" if member["distribution"] else "given as an object"
        yield f"  {place}. {name}  ({source})  {member['struct']} in {member['header']}"
        yield f"     functors: {', '.join(member['functors']) or 'none'}"
    if not data["variants"]:
        yield "  none: softmax(sm_scale * q . k) over every key of the index"
    if not data["use_softmax"]:
        yield "  no softmax: the transformed logit is the weight"
    if data["functors"]:
        yield "\nchains:"
        for functor, aliases in data["functors"].items():
            yield f"  {functor}: {' -> '.join(aliases)}"
    if data["params"]:
        yield "\nparameters:"
        for row in data["params"]:
            shown = row["error"] if "error" in row else _shown(row["value"])
            yield f"  {row['name']} = {shown}  [{row['set']}]{'  ' + row['doc'] if row['doc'] else ''}"
    tiles = data["tiles"]
    yield f"\ntiles, by {data['tile']['chosen_by']}:"
    for name in ("short", "tall"):
        if name in tiles:
            yield f"  {name}: {tiles[name]['t_q']} query rows x {tiles[name]['t_kv']} keys, {tiles[name]['family']}"
    for reason in tiles["why"]:
        yield f"  - {reason}"
    kernel = data["kernel"]
    yield f"\nkernel {kernel['name']}"
    if "key" in kernel:
        yield f"  source: {kernel['source_path']}"
        yield f"  library: {kernel['path']}"
        yield f"  cache key: {kernel['key']}"
        yield f"  {'found in the cache' if kernel['cached'] else 'compiled'} in {kernel['seconds']:.3f} s"


def _shown(value) -> str:
    if isinstance(value, dict):
        return f"{value['dtype']} tensor {value['shape']}"
    return repr(value)
