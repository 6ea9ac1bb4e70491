"""What to compute, as the options of several subcommands say it."""

from __future__ import annotations

from attnloom.errors import ParamError


def variant_names(text: str) -> list[str]:
    """The names in `"causal, soft_cap"`, in order."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parameter(text: str) -> tuple[str, int | float | bool | str]:
    """`("a.b", 3)` for `"a.b=3"`. Raises `ParamError`."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ParamError(f"--param {text!r} is not of the form variant.parameter=value")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, {"true": True, "false": False}.get(value.lower(), value)


def spec_of(variants: str, stack: str | None, fields: dict):
    """The `AttentionSpec` of the names in `variants`, or of `stack` where one is named; `fields` are its others.

    Raises as `AttentionSpec`.
    """
    from attnloom.spec import AttentionSpec

    if stack:
        return AttentionSpec.from_stack(stack, **fields)
    return AttentionSpec(variants=variant_names(variants), **fields)
