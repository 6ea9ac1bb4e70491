"""What an attention variant is: a C++ struct of functors, its parameters, and a float64 reference.

A variant descriptor imports nothing heavy: code and computed defaults are `"module:attr"` strings and the C++ header is
a resource beside the plugin module, so that listing plugins loads neither torch nor a compiler.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable
from typing import Any

from attrs import field, frozen

from attnloom.errors import CompositionError
from attnloom.names import NAME, normalize_name

__all__ = ["ABI", "FUNCTORS", "NAME", "Param", "StaticParam", "TensorParam", "Variant", "normalize_name"]

ABI = 1
"""Version of the C++ functor contract (`attnloom/variant.h`); part of every cache key."""

FUNCTORS = (
    "query_transform",
    "key_transform",
    "value_transform",
    "logits_transform",
    "logits_mask",
    "kv_range",
    "row_init",
    "output_transform",
)
"""Every functor a variant may define, in the order in which a kernel meets them."""

_CPP_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*\Z")
_CPP_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
    concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete
    do double dynamic_cast else enum errno explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
    requires return short signed sizeof static static_assert static_cast stderr stdin stdout struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq
"""
_CPP_RESERVED = frozenset(_CPP_WORDS.split())
_MODULE_ATTR = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")
_HEADER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\.(h|hpp|cuh)\Z")
TENSOR_DTYPES = (
    *("float64", "float32", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint32", "uint8", "bool"),
)


def _check_name(_instance, attribute, value) -> None:
    if not isinstance(value, str) or not NAME.match(value):
        raise CompositionError(f"{attribute.name} {value!r} must match {NAME.pattern!r}")
    if value in _CPP_RESERVED or keyword.iskeyword(value):
        raise CompositionError(f"{attribute.name} {value!r} is a reserved word of C++ or Python")


def _check_module_attr(_instance, attribute, value) -> None:
    if callable(value):
        return
    if not isinstance(value, str) or not _MODULE_ATTR.match(value):
        raise CompositionError(f"{attribute.name} must be a 'module:attr' string, got {value!r}")


def _optional_module_attr(instance, attribute, value) -> None:
    if value is not None:
        _check_module_attr(instance, attribute, value)


@frozen
class Param:
    """A run-time scalar: a field of the C++ parameter struct, so a new value never recompiles.

    Attributes:
        name: the field's name; users write `"variant.name"`.
        type: `float` (float32), `int` (int32) or `bool`; `str` only with `host_only`.
        default: the value, or none where the user must give one.
        computed: `"module:fn"`, called as `fn(spec, params)` with this variant's other parameters when none is given.
        doc: one line with the unit.
        host_only: not a field of the C++ struct: it only feeds `computed` defaults.
        planned: frozen at plan because `kv_range` reads it. None: yes exactly if the variant has a `kv_range`.
    """

    name: str = field(validator=_check_name)
    type: type = field(default=float)
    default: float | int | bool | str | None = field(default=None, kw_only=True)
    computed: str | None = field(default=None, kw_only=True, validator=_optional_module_attr)
    doc: str = field(default="", kw_only=True)
    host_only: bool = field(default=False, kw_only=True)
    planned: bool | None = field(default=None, kw_only=True)

    @type.validator
    def _known_type(self, _attribute, value):
        if value not in (float, int, bool, str):
            raise CompositionError(f"parameter {self.name!r}: type must be float, int, bool or str, got {value!r}")
        if value is str and not self.host_only:
            raise CompositionError(f"parameter {self.name!r}: a kernel reads no str; say host_only=True")


@frozen
class StaticParam:
    """A compile-time constant (`static constexpr` in the C++ parameter struct, part of the cache key).

    Attributes:
        type: `int` or `bool`.
        default: the value, or none.
        computed: `"module:fn"`, called as `fn(spec, params)` when no value is given.
        choices: the values allowed, or none for any.
        check: `"module:fn"`, called as `fn(spec, params)` with the static values and the scalars known by then, before
            anything is compiled; raises `ParamError` for a value that does not fit the spec.
    """

    name: str = field(validator=_check_name)
    type: type = field(default=int)
    default: int | bool | None = field(default=None, kw_only=True)
    computed: str | None = field(default=None, kw_only=True, validator=_optional_module_attr)
    choices: tuple | None = field(default=None, kw_only=True)
    check: str | None = field(default=None, kw_only=True, validator=_optional_module_attr)
    doc: str = field(default="", kw_only=True)

    @type.validator
    def _known_type(self, _attribute, value):
        if value not in (int, bool):
            raise CompositionError(f"static parameter {self.name!r}: type must be int or bool, got {value!r}")


@frozen
class TensorParam:
    """A tensor of declared shape and dtype, read in C++ as `p.name(i, j)`; a 0-d tensor is a scalar that may change
    under a captured graph.

    Attributes:
        dtype: one of `TENSOR_DTYPES`.
        shape: a tuple of integers, spec attributes (`"num_qo_heads"`), static parameters (`"rotary_dim"`), either with
            an integer division (`"rotary_dim//2"`), or `"*"` for any size.
        computed: `"module:fn"`, called as `fn(spec, params)`; returns anything numpy or torch can make a tensor of.
        value: the tensor itself, in place of `computed`: what a variant written in Python closes over. Another in its
            place is no smaller along any dimension. Neither: the user must give the tensor.
        planned: as for `Param`.
    """

    name: str = field(validator=_check_name)
    dtype: str = field(default="float32", kw_only=True)
    shape: tuple = field(default=(), kw_only=True, converter=tuple)
    computed: str | None = field(default=None, kw_only=True, validator=_optional_module_attr)
    value: Any = field(default=None, kw_only=True, eq=False, repr=False)
    doc: str = field(default="", kw_only=True)
    planned: bool | None = field(default=None, kw_only=True)

    @dtype.validator
    def _known_dtype(self, _attribute, value):
        if value not in TENSOR_DTYPES:
            raise CompositionError(f"tensor parameter {self.name!r}: dtype {value!r} is not one of {TENSOR_DTYPES}")


AnyParam = Param | StaticParam | TensorParam


@frozen(kw_only=True)
class Variant:
    """The descriptor of an attention variant.

    Attributes:
        name: `[a-z][a-z0-9_]*`, unique among the installed plugins.
        struct: the C++ struct that holds the functors.
        header: its header, a path relative to the package of the plugin module.
        package: the import package whose folder holds `header`; none: that of the plugin that returned the descriptor.
        functors: the names (of `FUNCTORS`) that the struct defines; the generated code asserts that the two agree.
        use_softmax: true, false, or none for no opinion.
        params: `Param`, `StaticParam` and `TensorParam`, in the order of the C++ struct.
        reference: `"module:Class"`; the class has a method a functor, vectorised over float64 numpy arrays.
        check: `"module:fn"`, called as `fn(spec, params)` with all the variant's values (tensors as `ParamTensor`)
            whenever they change; raises `ParamError` for values that contradict each other. None: nothing to check.
        example: `"module:fn"`, called as `fn(spec, qo_lens, kv_lens)`; returns values by parameter name that fit such a
            batch. What `attnloom.testing` and `attnloom plugins check` try the variant with; needed only where a
            required parameter cannot be made up from its declaration.
        rotation: whether it rotates q and k by position (two rotations in one chain are an error).
        conflicts: names of variants it cannot be combined with.
        abi: version of the functor contract that the struct was written for (the default is that of the first release,
            not the newest: a header never claims a contract that its author had not seen).
        doc: what it computes and where that comes from (paper, model).
        mods: the Python functions it is lowered from, for `from_mods`; then there is no header and no reference.
        text: C++ that defines `struct`, in place of a header: what lowering makes of `mods`.
        notes: what lowering found out, a line each, for `explain`.
    """

    name: str = field(validator=_check_name)
    struct: str = field()
    header: str | None = field(default=None)
    package: str | None = None
    functors: frozenset[str] = field(converter=frozenset)
    use_softmax: bool | None = None
    params: tuple[AnyParam, ...] = field(default=(), converter=tuple)
    reference: str | Callable | None = field(default=None)
    check: str | None = field(default=None, validator=_optional_module_attr)
    example: str | None = field(default=None, validator=_optional_module_attr)
    rotation: bool = False
    conflicts: frozenset[str] = field(default=frozenset(), converter=frozenset)
    abi: int = field(default=1)
    doc: str = ""
    mods: Any = None
    text: str | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @abi.validator
    def _is_a_number(self, _attribute, value):
        if isinstance(value, bool) or not isinstance(value, int):
            raise CompositionError(f"variant {self.name!r}: abi must be an integer such as {ABI}, got {value!r}")

    @struct.validator
    def _is_identifier(self, _attribute, value):
        if not isinstance(value, str) or not _CPP_IDENTIFIER.match(value) or set(value.split("::")) & _CPP_RESERVED:
            raise CompositionError(f"variant {self.name!r}: struct {value!r} is not a C++ identifier")

    @classmethod
    def from_mods(
        cls,
        name: str,
        *,
        score_mod: Callable | str | None = None,
        mask_mod: Callable | str | None = None,
        params: Iterable[Param | TensorParam] = (),
        fast_math: bool = False,
        doc: str = "",
    ) -> Variant:
        """A variant written in Python, with the signatures of FlexAttention; lowered to C++ when it is composed.

        `q_idx` and `kv_idx` are positions (`q_pos`, `kv_pos`: the last query of a request is aligned with its last key
        unless the index says otherwise), `b` is the request, `h` the query head; all are 0-d int32 tensors, `score` is
        the scaled logit, float32. Further arguments, by name, are `params` (0-d tensors) and `qo_len`, `kv_len`,
        `q_index`, `kv_index`, `kv_head`. Tensors that the function closes over are parameters too, under their names;
        Python numbers are compiled in.

        Args:
            score_mod: `(score, b, h, q_idx, kv_idx) -> score`, or `"module:function"`.
            mask_mod: `(b, h, q_idx, kv_idx) -> bool`, true keeps the pair, or `"module:function"`.
            params: run-time parameters that the functions take as arguments of the same name.
            fast_math: let devices use approximate functions (`tanh`, `exp`, `log`) and fuse products with sums.

        Raises:
            CompositionError: neither mod is given, or one is no function.
        """
        from attnloom.mods.descriptor import Mods

        mods = Mods(score_mod, mask_mod, fast_math=fast_math)
        functors = {"logits_transform"} if score_mod is not None else set()
        functors |= {"logits_mask"} if mask_mod is not None else set()
        struct = "attnloom::mods::variants::" + "".join(part.title() for part in normalize_name(name).split("_"))
        return cls(name=name, struct=struct, functors=functors, params=params, mods=mods, doc=doc)

    @header.validator
    def _is_relative_header(self, _attribute, value):
        if value is None and (self.mods is not None or self.text is not None):
            return
        if not isinstance(value, str) or not _HEADER.match(value) or ".." in value.split("/"):
            raise CompositionError(
                f"variant {self.name!r}: header {value!r} must be a relative path of a .h, .hpp or .cuh"
            )

    @reference.validator
    def _is_reference(self, attribute, value):
        if value is not None or self.mods is None:
            _check_module_attr(self, attribute, value)

    @functors.validator
    def _are_functors(self, _attribute, value):
        if unknown := sorted(value - set(FUNCTORS)):
            raise CompositionError(
                f"variant {self.name!r}: unknown functor(s) {unknown}; the contract has {list(FUNCTORS)}"
            )
        if not value and self.use_softmax is None:
            raise CompositionError(f"variant {self.name!r} defines no functor and says nothing of use_softmax")

    @params.validator
    def _params_are_distinct(self, _attribute, value):
        for param in value:
            if not isinstance(param, (Param, StaticParam, TensorParam)):
                raise CompositionError(f"variant {self.name!r}: {param!r} is no Param, StaticParam or TensorParam")
        names = [param.name for param in value]
        if len(set(names)) != len(names):
            raise CompositionError(f"variant {self.name!r}: duplicate parameter names in {names}")

    def param(self, name: str) -> AnyParam:
        """The parameter called `name`. Raises `KeyError`."""
        for param in self.params:
            if param.name == name:
                return param
        raise KeyError(name)

    def is_planned(self, param: Param | TensorParam) -> bool:
        """Whether `param` freezes at plan."""
        return "kv_range" in self.functors if param.planned is None else param.planned
