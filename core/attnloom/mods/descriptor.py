"""What a variant written in Python is made of. Imports no torch, so that plugin modules may use it."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
from collections.abc import Callable

from attrs import field, frozen

from attnloom.errors import CompositionError

POSITIONAL = {"score_mod": ("score", "b", "h", "q_idx", "kv_idx"), "mask_mod": ("b", "h", "q_idx", "kv_idx")}
"""The arguments every mod takes, in order, under names of its own choice."""

SITE_ARGUMENTS = ("kv_head", "q_index", "kv_index", "qo_len", "kv_len")
"""Further fields of `attnloom::Site` that a mod is given if it has an argument of that name."""

_MODULE_ATTR = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


def _is_mod(instance, attribute, value) -> None:
    if value is None or callable(value) or (isinstance(value, str) and _MODULE_ATTR.match(value)):
        return
    raise CompositionError(f"{attribute.name} must be a function or 'package.module:function', got {value!r}")


@frozen
class Mods:
    """The Python functions of a variant, each a function or a `"module:function"` string.

    Attributes:
        score_mod: `(score, b, h, q_idx, kv_idx) -> score`.
        mask_mod: `(b, h, q_idx, kv_idx) -> bool`, true keeps the pair.
        fast_math: whether devices may use their approximate functions and fuse products with sums.
    """

    score_mod: Callable | str | None = field(default=None, validator=_is_mod)
    mask_mod: Callable | str | None = field(default=None, validator=_is_mod)
    fast_math: bool = field(default=False, kw_only=True, converter=bool)

    def __attrs_post_init__(self):
        if self.score_mod is None and self.mask_mod is None:
            raise CompositionError("a variant made of mods needs a score_mod, a mask_mod or both")

    def functions(self) -> dict[str, Callable]:
        """The functions that are given, `"score_mod"` and `"mask_mod"`, strings imported.

        Raises:
            CompositionError: a string that names nothing callable.
        """
        given = {"score_mod": self.score_mod, "mask_mod": self.mask_mod}
        return {kind: _imported(kind, mod) for kind, mod in given.items() if mod is not None}

    def read_now(self) -> tuple:
        """What the functions would read if they were traced now; equal where nothing was rebound in between."""
        from attnloom.mods.closure import read_by

        return tuple(read_by(mod) for mod in (self.score_mod, self.mask_mod) if callable(mod))

    def __reduce__(self):
        for kind, mod in (("score_mod", self.score_mod), ("mask_mod", self.mask_mod)):
            name = getattr(mod, "__qualname__", None)
            if name is not None and {"<lambda>", "<locals>"} & set(name.split(".")):
                raise pickle.PicklingError(
                    f"{kind} is {name}, which another process cannot import; move it to the top level of a module "
                    f"and name it there, or give it as the string 'module:function'"
                )
        return _rebuild, (self.score_mod, self.mask_mod, self.fast_math)


def _rebuild(score_mod, mask_mod, fast_math) -> Mods:
    return Mods(score_mod, mask_mod, fast_math=fast_math)


def _imported(kind: str, mod: Callable | str) -> Callable:
    if not isinstance(mod, str):
        return mod
    module, _, attr = mod.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attr.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CompositionError(f"{kind} {mod!r} cannot be imported: {error}") from error
    if not callable(found):
        raise CompositionError(f"{kind} {mod!r} is {found!r}, which is no function")
    return found


def extra_arguments(kind: str, function: Callable, params: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments of a mod beyond the positional ones that it is to be given: parameters and fields of the site.

    Raises:
        CompositionError: too few positional arguments, or one that is neither a parameter nor a field of the site.
    """
    count, shown = len(POSITIONAL[kind]), f"{kind} {name_of(function)!r}"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ()
    named, positional, variadic = [], 0, False
    for argument in signature.parameters.values():
        if argument.kind is argument.VAR_POSITIONAL:
            variadic = True
        elif argument.kind is not argument.VAR_KEYWORD:
            if argument.kind is not argument.KEYWORD_ONLY and positional < count:
                positional += 1
            else:
                named.append(argument)
    if positional < count and not variadic:
        raise CompositionError(
            f"{shown} takes {positional} positional argument(s), expected {count}: {', '.join(POSITIONAL[kind])}"
        )
    wanted = []
    for argument in named:
        if argument.name in params or (argument.name in SITE_ARGUMENTS and argument.default is argument.empty):
            wanted.append(argument.name)
        elif argument.default is argument.empty and argument.name in POSITIONAL["score_mod"]:
            raise CompositionError(
                f"{shown} takes {argument.name!r} after {count} positional arguments ({', '.join(POSITIONAL[kind])}); "
                f"a score_mod takes {', '.join(POSITIONAL['score_mod'])}"
            )
        elif argument.default is argument.empty:
            known = ", ".join((*params, *SITE_ARGUMENTS))
            raise CompositionError(
                f"{shown} has an argument {argument.name!r} that is neither a declared parameter nor one of {known}; "
                f"add Param({argument.name!r}, ...) to params"
            )
    return tuple(wanted)


def name_of(function: Callable) -> str:
    """What to call a mod in messages."""
    return getattr(function, "__name__", None) or type(function).__name__
