"""A variant given as Python functions becomes a variant given as C++ text: traced, lowered, its range inferred."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import attrs
import torch

from attnloom.errors import CompositionError
from attnloom.mods import checks
from attnloom.mods.captures import Captures
from attnloom.mods.descriptor import POSITIONAL, SITE_ARGUMENTS, extra_arguments
from attnloom.mods.errors import Refusal, refuse
from attnloom.mods.linear import added_line
from attnloom.mods.lower import Lowered, lower
from attnloom.mods.ranges import Inferred, Region, infer, sorted_flag
from attnloom.mods.reference import ModsReference
from attnloom.mods.saturation import saturation_bound
from attnloom.mods.trace import Argument, trace
from attnloom.mods.values import Scalar, View
from attnloom.variant import Param, StaticParam, TensorParam, Variant

_SITE = {
    "b": Scalar("site.request", torch.int32, nonnegative=True),
    "h": Scalar("site.qo_head", torch.int32, nonnegative=True),
    "q_idx": Scalar("site.q_pos", torch.int32),
    "kv_idx": Scalar("site.kv_pos", torch.int32),
    **{name: Scalar(f"site.{name}", torch.int32, nonnegative=True) for name in SITE_ARGUMENTS},
}
_SCALARS = {float: torch.float32, int: torch.int32, bool: torch.bool}


def lower_variant(variant: Variant) -> Variant:
    """`variant`, one of `Variant.from_mods`, with the C++ text of its functors and the tensors it captures.

    Raises:
        ModError: something that cannot become a functor; names the line of Python.
        CompositionError: an argument that is no parameter.
    """
    functions = variant.mods.functions()
    declared = _declared(variant)
    captures = Captures(tuple(functions.values()), set(declared))
    lowered = {kind: _lowered(variant, kind, function, declared, captures) for kind, function in functions.items()}
    functors: dict[str, str] = {}
    facts: list[str] = []
    inferred = Inferred(None, ())
    if "score_mod" in lowered:
        functors["logits_transform"], linear = _score(lowered["score_mod"])
        facts += ["linear_in_distance"] * linear
    if "mask_mod" in lowered:
        mask = lowered["mask_mod"]
        _check_mask(mask)
        inferred = infer(mask)
        if inferred.region is not None:
            functors["kv_range"] = _range(mask, inferred)
            facts += ["range_monotone"] * inferred.region.monotone + ["range_head_uniform"] * inferred.head_uniform
            inferred = attrs.evolve(inferred, reads=frozenset(re.findall(r"\bp\.(\w+)", functors["kv_range"])))
        if inferred.residual or inferred.region is None:
            functors["logits_mask"] = _mask(mask, inferred)
    params = [*variant.params, *captures.params.values()]
    return attrs.evolve(
        variant,
        mods=None,
        functors=functors,
        params=_with_facts(params, inferred),
        text=_text(variant, facts, functors),
        reference=functools.partial(ModsReference, functions, tuple(declared), captures.tensors()),
        check=functools.partial(
            checks.check, variant.name, tuple(sorted(inferred.region.checks if inferred.region else ()))
        ),
        notes=_notes(inferred) if "mask_mod" in lowered else (),
    )


def _declared(variant: Variant) -> dict[str, Param | TensorParam]:
    for param in variant.params:
        if isinstance(param, StaticParam):
            raise CompositionError(
                f"variant {variant.name!r}: {param.name!r} is a StaticParam; a number that the functions close over is "
                "compiled in, a Param is read by each run"
            )
        if param.name in SITE_ARGUMENTS or param.name in POSITIONAL["score_mod"]:
            raise CompositionError(f"variant {variant.name!r}: a parameter cannot be called {param.name!r}")
    return {param.name: param for param in variant.params if not getattr(param, "host_only", False)}


def _lowered(variant: Variant, kind: str, function: Callable, declared: dict, captures: Captures) -> Lowered:
    extra = extra_arguments(kind, function, tuple(declared))
    inputs: dict[str, Scalar | View] = {"score": Scalar("score", torch.float32), **_SITE}
    for name, param in declared.items():
        inputs[name] = _input(param)
    positional = [Argument(name, torch.zeros((), dtype=inputs[name].dtype)) for name in POSITIONAL[kind]]
    named = [Argument(name, _example(inputs[name])) for name in extra]
    traced = trace(kind, function, positional, named)
    return lower(traced, inputs, captures, params=frozenset(declared), fast_math=variant.mods.fast_math)


def _input(param: Param | TensorParam) -> Scalar | View:
    if isinstance(param, Param):
        return Scalar(f"p.{param.name}", _SCALARS[param.type])
    rank, dtype = len(param.shape), getattr(torch, param.dtype)
    return View(param.name, dtype, (None,) * rank, tuple(range(rank))) if rank else Scalar(f"p.{param.name}()", dtype)


def _example(value: Scalar | View) -> torch.Tensor:
    rank = len(value.free) if isinstance(value, View) else 0
    return torch.zeros((8,) * rank, dtype=value.dtype)


def _check_mask(mask: Lowered) -> None:
    value = mask.returned
    dtype = value.meta["val"].dtype if hasattr(value, "op") else torch.bool if isinstance(value, bool) else None
    if dtype is not torch.bool:
        found = str(dtype).removeprefix("torch.") if dtype is not None else repr(value)
        raise refuse(
            mask.trace.title, mask.trace.lines.get(value) or mask.trace.first_line,
            Refusal(f"returns {found}", "bool", "return the result of a comparison, such as value != 0"),
        )  # fmt: skip


def _score(score: Lowered) -> tuple[str, bool]:
    """The functor, and whether it is `linear_in_distance`."""
    any_logit = functools.partial(_function, "Logit logits_transform", "Logit score, ", types=", class Logit")
    if (bound := saturation_bound(score)) is not None:
        return any_logit([], f"attnloom::soft_clamp(score, {bound})"), False
    if (line := added_line(score)) is not None:
        slope = score.text(line.slope, torch.float32)
        bias = f"{slope if line.sign > 0 else f'-({slope})'} * site.distance"
        return any_logit(score.body([line.slope]), f"score + {bias}"), True
    body, result = score.body([score.returned]), _result(score, torch.float32)
    return _function("float logits_transform", "float score, ", body, result), False


def _result(lowered: Lowered, dtype: torch.dtype) -> str:
    try:
        return lowered.text(lowered.returned, dtype)
    except Refusal as refusal:
        raise refuse(lowered.trace.title, lowered.trace.lines.get(lowered.returned), refusal) from None


def _mask(mask: Lowered, inferred: Inferred) -> str:
    parts = inferred.residual or (mask.returned,)
    if parts == (mask.returned,):
        return _function("bool logits_mask", "", mask.body(parts), _result(mask, torch.bool))
    text = " & ".join(mask.text(part, torch.bool) for part in parts)
    return _function("bool logits_mask", "", mask.body(parts), text)


def _range(mask: Lowered, inferred: Inferred) -> str:
    statements = mask.body(inferred.region.nodes)
    names = [f"keys_{i}" for i in range(len(inferred.parts))]
    for name, part in zip(names, inferred.parts, strict=True):
        statements.append(f"const auto {name} = {_whole(part)};")
    result = functools.reduce(lambda a, b: f"mods::both({a}, {b})", names)
    kind = "Range" if inferred.region.count == 1 else "Ranges"
    return _function(f"{kind} kv_range", "", statements, f"mods::as_ranges({result})")


def _whole(region: Region) -> str:
    return f"mods::only_if({region.text}, mods::everything())" if region.gate else region.text


def _function(head: str, argument: str, statements: list[str], result: str, types: str = "") -> str:
    body = "\n".join(f"    {line}" for line in [*statements, f"return {result};"])
    arguments = f"[[maybe_unused]] const Params& p, {argument}[[maybe_unused]] const Site& site"
    return f"  template <class Params{types}>\n  ATTNLOOM_FN {head}({arguments}) const {{\n{body}\n  }}\n"


def _text(variant: Variant, facts: list[str], functors: dict[str, str]) -> str:
    constants = "".join(f"  static constexpr bool {fact} = true;\n" for fact in facts)
    members = "\n".join([constants, *functors.values()] if constants else functors.values())
    return (
        "#include <attnloom/mods.h>\n#include <attnloom/region.h>\n\nnamespace attnloom::mods::variants {\n\n"
        f"struct {variant.struct.rpartition('::')[2]} {{\n{members}}};\n\n}}  // namespace attnloom::mods::variants\n"
    )


def _with_facts(params: list[Any], inferred: Inferred) -> list[Any]:
    """The parameters, those that the range reads planned, and the flags that say which tensors ascend."""
    if inferred.region is None:
        return [attrs.evolve(param, planned=False) for param in params]
    planned = [attrs.evolve(param, planned=param.name in inferred.reads) for param in params]
    for field, dim in sorted(inferred.region.sorted):
        planned.append(
            Param(
                sorted_flag(field, dim),
                bool,
                computed=functools.partial(checks.ascends, field, dim),
                planned=True,
                doc=f"Whether {field} never falls along dimension {dim}, so that a range may be searched in it.",
            )
        )
    return planned


def _notes(inferred: Inferred) -> tuple[str, ...]:
    if inferred.region is None:
        return ("no kv_range: no comparison of kv_idx with something that is the same for all keys of a query",)
    notes = [f"kv_range inferred from: {part}" for part in inferred.bounded]
    if inferred.region.count > 2:
        notes.append(f"up to {inferred.region.count} intervals: the narrowest gaps are bridged to make two")
    if inferred.region.sorted:
        names = ", ".join(sorted({field for field, _ in inferred.region.sorted}))
        notes.append(f"searched for in {names}, where that ascends; else every key is looked at")
    if inferred.residual:
        notes.append(f"tested key by key within the range: {' and '.join(inferred.tested)}")
    else:
        notes.append("the range is the mask: no key is tested")
    return tuple(notes)
