"""An explanation as a page of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def lines(data: dict[str, Any]) -> Iterator[str]:
    """The page, line by line, of the `data` of an `Explanation`."""
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
        where = f"in {member['header']}" if member["header"] else "lowered from Python"
        yield f"  {place}. {name}  ({source})  {member['struct']} {where}"
        yield f"     functors: {', '.join(member['functors']) or 'none'}"
        for note in member.get("notes", ()):
            yield f"     {note}"
    if not data["variants"]:
        yield "  none: softmax(sm_scale * q . k) over every key of the index"
    if not data["use_softmax"]:
        yield "  no softmax: the transformed logit is the weight"
    if data["functors"]:
        yield "\nchains:"
        for functor, suppliers in data["suppliers"].items():
            joint = " & " if functor in ("kv_range", "logits_mask") else " -> "
            yield f"  {functor}: {joint.join(map(_supplier, suppliers))}"
    if data["params"]:
        yield "\nparameters:"
        for row in data["params"]:
            shown = row["from"] if row["value"] is None else _shown(row["value"])
            shown = row.get("error", shown)
            yield f"  {row['name']} = {shown}  [{row['set']}, {row['from']}]{'  ' + row['doc'] if row['doc'] else ''}"
    for plugin, settings in data["settings"].items():
        yield f"\nsettings of {plugin}: {', '.join(f'{name} = {value!r}' for name, value in settings.items())}"
    if data["intervals"]:
        yield from _interval_lines(data["intervals"])
    tiles, tile = data["tiles"], data["tile"]
    source = f" of {tile['plugin']} ({tile['distribution']} {tile['version']})" if "plugin" in tile else ""
    yield f"\ntiles, by {tile['chosen_by']}{source}:"
    for name in ("short", "tall"):
        if name in tiles:
            yield f"  {name}: {_tile(tiles[name])}"
    for reason in tiles["why"]:
        yield f"  - {reason}"
    if second := data["long"]:
        yield f"  a second kernel, whose tall tile is {_tile(second)}, runs {second['for']}"
    kernel = data["kernel"]
    yield f"\nkernel {kernel['name']} ({kernel['detail']})"
    if "key" in kernel:
        yield f"  source: {kernel['source_path']}"
        yield f"  library: {kernel['path']}"
        yield f"  cache key: {kernel['key']}"
        found = "found in the cache" if kernel["cached"] else "compiled"
        yield f"  {found} in {kernel['seconds']:.3f} s{_built(kernel)}"


def _tile(tile: dict[str, Any]) -> str:
    return f"{tile['t_q']} query rows x {tile['t_kv']} keys, {tile['family']}"


def _supplier(one: dict[str, Any]) -> str:
    return f"{one['alias']} ({one['distribution']} {one['version']})" if one["distribution"] else one["alias"]


def _built(kernel: dict[str, Any]) -> str:
    built = kernel.get("built") or {}
    if not kernel["cached"] or not built:
        return ""
    return f"; {built['compiler']} took {built['seconds']:.1f} s on {built['created']}"


def _interval_lines(intervals: dict[str, Any]) -> Iterator[str]:
    yield f"\nvisible kv_pos of a request with qo_len {intervals['qo_len']} and kv_len {intervals['kv_len']}:"
    for row in intervals["rows"]:
        heads = row["heads"]
        which = (
            "" if len(heads) == max(max(r["heads"]) for r in intervals["rows"]) + 1 else f", heads {_compact(heads)}"
        )
        parts = " & ".join(f"{alias} {_spans(spans)}" for alias, spans in row["variants"].items())
        seen = sum(hi - lo for lo, hi in row["visible"])
        yield f"  q_pos {row['q_pos']}{which}: {_spans(row['visible'])}, {seen} keys  ({parts})"


def _spans(spans) -> str:
    return " + ".join(f"[{lo}, {hi})" for lo, hi in spans) or "nothing"


def _compact(numbers: list[int]) -> str:
    """`0-3, 6` for `[0, 1, 2, 3, 6]`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low}-{high}" if low != high else str(low) for low, high in runs)


def _shown(value) -> str:
    if isinstance(value, dict):
        return f"{value['dtype']} tensor {value['shape']}"
    return repr(value)
