"""A list of variants -> one ordered, conflict-checked chain -> C++ text and the layout of its parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from attnloom.bound_params import BoundParams, bind
from attnloom.composed_source import source_of
from attnloom.errors import CompositionError
from attnloom.includes import check_includes
from attnloom.param_struct import params_struct
from attnloom.param_values import check_shapes, static_values
from attnloom.params import assign
from attnloom.variant import ABI, FUNCTORS, Variant, _check_name, normalize_name

INCLUDE_DIR = Path(__file__).parent / "include"
"""Where `<attnloom/...>` headers lie."""


@frozen(kw_only=True, eq=False)
class Member:
    """One variant of a chain.

    Attributes:
        alias: the name it goes by in this chain; parameters are `"alias.parameter"`.
        variant: its descriptor.
        provider: the record of the plugin that provides it, or none for a `Variant` given as an object.
        include_dir: folder that its header is found in; `include` is the path from there. None where the descriptor has
            the text itself.
        statics: values of its static parameters.
    """

    alias: str
    variant: Variant
    provider: Any = None
    include_dir: Path | None
    include: str | None
    statics: dict[str, int | bool] = field(factory=dict)

    @property
    def label(self) -> str:
        """Who answers for it: the distribution, or the variant itself where it was given as an object."""
        return self.provider.distribution if self.provider is not None else f"variant '{self.variant.name}'"

    @property
    def struct_name(self) -> str:
        """The C++ struct of its parameters."""
        return f"Params_{self.alias}"


@frozen(kw_only=True, eq=False)
class Composition:
    """Variants as one chain.

    Attributes:
        members: in the order in which their transforms apply.
        functors: the functors that any member defines.
        use_softmax: false where the transformed logit is the weight.
        source: C++ text that declares `attnloom::generated::Params` and `attnloom::generated::Variant`. Run-time
            parameters never change it.
        include_dirs: folders that the text includes from, the core's first.
        owners: folder -> who answers for a compile error in it.
        params_type: the ctypes struct laid out as `Params`.
    """

    members: tuple[Member, ...]
    functors: frozenset[str]
    use_softmax: bool
    source: str = field(repr=False)
    include_dirs: tuple[Path, ...]
    owners: dict[str, str]
    params_type: type[ctypes.Structure]
    spec: Any = field(repr=False)

    @property
    def has_range(self) -> bool:
        """Whether a `kv_range` limits the keys that a row sees."""
        return "kv_range" in self.functors

    def resolve(self, params: Mapping[str, Any] | None = None, *, device: str = "cpu") -> BoundParams:
        """Check `params` and lay them out for a kernel; what is not given takes its default.

        Args:
            params: values keyed `"alias.parameter"`: numbers, and torch tensors, numpy arrays or nested lists.
            device: where tensors must lie. Lists and computed defaults are put there.

        Raises:
            ParamError: an unknown, missing or ill-typed parameter, or a tensor of another shape, dtype or device.
        """
        return bind(self.members, self.spec, self.params_type, assign(self.members, params), device)

    def explain(self) -> dict[str, Any]:
        """Who supplies what, in order, as plain data."""
        return {
            "variants": [_explain(member) for member in self.members],
            "functors": {
                functor: [member.alias for member in self.members if functor in member.variant.functors]
                for functor in FUNCTORS
                if functor in self.functors
            },
            "use_softmax": self.use_softmax,
            "source": self.source,
        }


def compose(
    variants: Sequence[str | Variant], *, spec, plugins, params: Mapping[str, Any] | None = None
) -> Composition:
    """Compose `variants`: transforms chain in the listed order, masks are ANDed, ranges intersect.

    Args:
        variants: names, `"alias=name"` strings or `Variant` descriptors.
        spec: an `AttentionSpec`; its head counts and dims size tensor parameters.
        plugins: the `PluginSet` that names are looked up in.
        params: where static parameters are taken from; none: `spec.params`.

    Raises:
        UnknownNameError, PluginError: a name that no working plugin provides.
        CompositionError: variants that contradict each other; names the plugins.
        ParamError: an unknown parameter, or a wrong static one.
    """
    members = [_member(entry, plugins) for entry in variants]
    _check_aliases(members)
    for member in members:
        _check_abi(member)
        check_shapes(member, spec)
    _check_conflicts(members)
    use_softmax = _agreed_softmax(members)
    _check_headers(members)
    _check_includes(members)
    given = assign(members, getattr(spec, "params", None) if params is None else params)
    members = tuple(_with_statics(member, spec, given[member.alias]) for member in members)
    params_type = params_struct(members)
    folders = {str(member.include_dir): member.label for member in members if member.include_dir is not None}
    return Composition(
        members=members,
        functors=frozenset().union(*(member.variant.functors for member in members)),
        use_softmax=use_softmax,
        source=source_of(members, params_type),
        include_dirs=tuple(dict.fromkeys([INCLUDE_DIR, *folders])),
        owners={str(INCLUDE_DIR): "attnloom", **folders},
        params_type=params_type,
        spec=spec,
    )


def _member(entry: str | Variant, plugins) -> Member:
    if isinstance(entry, Variant):
        alias, variant, provider = entry.name, entry, None
        if entry.package is None and entry.mods is None and entry.text is None:
            raise CompositionError(f"variant {entry.name!r}: name the import package that holds {entry.header!r}")
    elif isinstance(entry, str):
        alias, _, name = (
            normalize_name(part) for part in (entry if "=" in entry else f"{entry}={entry}").partition("=")
        )
        _check_alias(alias, entry)
        variant, provider = plugins.variant(name), plugins.provider("variant", name)
    else:
        raise CompositionError(f"a variant is a name, 'alias=name' or a Variant, got {entry!r}")
    if variant.mods is not None:
        from attnloom.mods.functor import lower_variant

        variant = lower_variant(variant)
    include_dir, include = _header(variant, plugins) if variant.text is None else (None, None)
    return Member(alias=alias, variant=variant, provider=provider, include_dir=include_dir, include=include)


def _check_alias(alias: str, entry: str) -> None:
    class Attribute:
        name = f"the alias in {entry!r}:"

    _check_name(None, Attribute, alias)


def _header(variant: Variant, plugins) -> tuple[Path, str]:
    folder, include = Path(plugins.header_dir(variant)), variant.header
    if include.startswith("include/"):
        folder, include = folder / "include", include.removeprefix("include/")
    if not (folder / include).is_file():
        raise CompositionError(f"variant {variant.name!r}: its header {include!r} is not in {folder}")
    return folder, include


def _check_aliases(members: list[Member]) -> None:
    seen: dict[str, Member] = {}
    for member in members:
        if first := seen.get(member.alias):
            owners = first.label if first.label == member.label else f"{first.label} and {member.label}"
            raise CompositionError(
                f"{member.alias!r} is listed twice ({owners}); "
                f"list it once, or give one an alias: 'other={member.variant.name}'"
            )
        seen[member.alias] = member


def _check_abi(member: Member) -> None:
    if member.variant.abi != ABI:
        raise CompositionError(
            f"variant {member.variant.name!r} of {member.label} was written for version {member.variant.abi} of the "
            f"functor contract, this attnloom has version {ABI}; install a matching release of one of them"
        )


def _check_conflicts(members: list[Member]) -> None:
    rotations = [member for member in members if member.variant.rotation]
    if len(rotations) > 1:
        raise CompositionError(f"two rotations, {_both(*rotations[:2])}; positions would be applied twice")
    for i, one in enumerate(members):
        for other in members[i + 1 :]:
            if other.variant.name in one.variant.conflicts:
                raise CompositionError(f"{_both(one, other)} exclude each other, says {one.label}")
            if one.variant.name in other.variant.conflicts:
                raise CompositionError(f"{_both(one, other)} exclude each other, says {other.label}")


def _both(one: Member, other: Member) -> str:
    return f"{one.alias!r} ({one.label}) and {other.alias!r} ({other.label})"


def _agreed_softmax(members: list[Member]) -> bool:
    without = next((member for member in members if member.variant.use_softmax is False), None)
    if without is None:
        return True
    for member in members:
        if member.variant.use_softmax:
            raise CompositionError(
                f"{_both(member, without)} disagree: the first needs softmax, the second replaces it"
            )
        if "row_init" in member.variant.functors:
            raise CompositionError(f"{_both(member, without)}: row_init joins a softmax, which the second replaces")
    return False


def _check_headers(members: list[Member]) -> None:
    """Two plugins whose headers or structs share a name would be mistaken for each other."""
    for i, one in enumerate(members):
        for other in members[i + 1 :]:
            if (one.include_dir, one.include, one.variant.text) == (
                other.include_dir,
                other.include,
                other.variant.text,
            ):
                continue
            if one.variant.struct == other.variant.struct:
                raise CompositionError(
                    f"{_both(one, other)} both call their struct {one.variant.struct!r}; put one in a namespace"
                )
            if one.include_dir == other.include_dir or None in (one.include_dir, other.include_dir):
                continue
            if (one.include_dir / other.include).exists():
                raise CompositionError(f"{_both(one, other)} both have a header {other.include!r}; rename one")
            if (other.include_dir / one.include).exists():
                raise CompositionError(f"{_both(one, other)} both have a header {one.include!r}; rename one")


def _check_includes(members: list[Member]) -> None:
    """A header includes its own package's headers, attnloom's and the system's, and no other's."""
    folders = [(m.label, m.include_dir) for m in members if m.include_dir not in (None, INCLUDE_DIR)]
    for member in members:
        if member.include_dir not in (None, INCLUDE_DIR):
            others = [pair for pair in folders if pair[1] != member.include_dir]
            check_includes(member.label, member.include_dir, member.include, others)


def _with_statics(member: Member, spec, given: Mapping[str, Any]) -> Member:
    return Member(
        alias=member.alias,
        variant=member.variant,
        provider=member.provider,
        include_dir=member.include_dir,
        include=member.include,
        statics=static_values(member, spec, given),
    )


def _explain(member: Member) -> dict[str, Any]:
    provider = member.provider
    return {
        "alias": member.alias,
        "variant": member.variant.name,
        "plugin": provider and provider.name,
        "distribution": provider and provider.distribution,
        "version": provider and provider.version,
        "header": str(member.include_dir / member.include) if member.include_dir is not None else None,
        "struct": member.variant.struct,
        "functors": [functor for functor in FUNCTORS if functor in member.variant.functors],
        "statics": dict(member.statics),
        "params": [param.name for param in member.variant.params],
        "doc": member.variant.doc,
        "notes": list(member.variant.notes),
    }
