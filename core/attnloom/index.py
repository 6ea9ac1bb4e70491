"""The block-sparse index: which cache slots each query token sees, and at which positions.

A `ComposedIndex` is what every storage format returns and all that the planner and the kernels read. Lengths and
offsets are host arrays (numpy); `indices` may live anywhere and be a table used in place: the planner never reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from attnloom.errors import IndexFormatError, PluginError
from attnloom.resolve import resolve
from attnloom.variant import _check_module_attr, _check_name, _optional_module_attr

MAX_LEVELS = 4


@frozen(kw_only=True, eq=False)
class Level:
    """One level: `R` block rows, each a group of query tokens that see the same run of keys.

    A token sits in at most one row of a level, and in a row of at least one level (which may hold no key). Integers of
    other widths are converted when the level is made; floats and values that do not fit raise `IndexFormatError`.

    Attributes:
        row_indptr: i32[R + 1], offsets of the block rows into `row_tokens` (or into the tokens themselves).
        row_tokens: i32[N] query tokens of each block row, or none where they are contiguous.
        kv_len: i32[R], keys of the row.
        kv_start: i32[R], ordinal (`kv_index`) of the row's first key in its request.
        kv_offset: i32[R], slot of that key in the row's first page, less than the page size.
        page_begin: i64[R], where the row starts in `indices` (in the list of one kv head with `per_head`).
        indices: i32 or i64 page ids, `[nnz]`, or `[num_kv_heads, nnz]` with `per_head`; a padded table of
            `[requests, max_pages]` is passed flat (`table.reshape(-1)`) and used in place. numpy or torch, host or
            device, last stride 1.
        per_head: whether `indices` has a row for each kv head.
        block_pos: i32[nnz] position of each page's slot 0 where positions are not consecutive, or none.
        mask_bits: u32[W] packed extra mask, or none. The bit of packed row token `t` (its place in the block row) and
            key ordinal `j` (from the row's first key) is bit `t * kv_len[r] + j` from bit `32 * mask_begin[r]`, LSB
            first.
        mask_begin: i64[R] first word of each row's mask; -1: the row has none.
        key_pos: i32[K] positions key by key, for rows where they are not consecutive inside a page, or none.
        key_pos_begin: i64[R] where each row's positions start: key `j` is at `key_pos[key_pos_begin[r] + j]`; -1: the
            row has none, and `block_pos` or the ordinals decide.
    """

    row_indptr: Any
    row_tokens: Any = None
    kv_len: Any
    kv_start: Any
    kv_offset: Any
    page_begin: Any
    indices: Any
    per_head: bool = False
    block_pos: Any = None
    mask_bits: Any = None
    mask_begin: Any = None
    key_pos: Any = None
    key_pos_begin: Any = None

    def __attrs_post_init__(self):
        _normalize(self, _LEVEL_ARRAYS)

    @property
    def num_rows(self) -> int:
        """Block rows of the level."""
        return len(self.kv_len)


@frozen(kw_only=True, eq=False)
class ComposedIndex:
    """One or more levels over the same cache; each (token, key) pair appears at no more than one level.

    Attributes:
        page_size: slots of a page (`B_c`).
        qo_indptr: i32[B + 1], query tokens of each request.
        kv_len: i32[B], keys of each request over all levels.
        token_request: i32[T], the request of each query token.
        q_pos: i32[T] position of each query token, or none for `kv_len - qo_len + q_index`.
        levels: the levels, at most `MAX_LEVELS`.
        single: the same visible pairs as one level, or none; the engine falls back to it where composing does not pay.
    """

    page_size: int
    qo_indptr: Any
    kv_len: Any
    token_request: Any
    q_pos: Any = None
    levels: tuple[Level, ...] = field(converter=tuple)
    single: ComposedIndex | None = None
    _checked: bool = field(init=False, default=False, repr=False)

    def __attrs_post_init__(self):
        _normalize(self, _INDEX_ARRAYS)

    @property
    def num_requests(self) -> int:
        """Requests in the batch, empty ones included."""
        return len(self.kv_len)

    @property
    def num_tokens(self) -> int:
        """Query tokens in the batch."""
        return len(self.token_request)

    def ensure_valid(self) -> None:
        """`validate()`, unless it has passed before or a storage format vouched for the index with `trusted()`.

        Planning calls this. Changing an array in place after it passed is the caller's responsibility.
        """
        if not self._checked:
            self.validate()

    def trusted(self) -> ComposedIndex:
        """Marks an index that is right by construction, so that planning skips `validate()`; returns it."""
        _set(self, "_checked", True)
        return self

    def validate(self) -> None:
        """Checks all that the host can: shapes, offsets, lengths, that rows stay within their requests, that levels are
        disjoint token by token. Page ids are looked at by `check_pages`.

        Raises:
            IndexFormatError: naming where, and both values.
        """
        from attnloom.index_check import check_index

        check_index(self)
        self.trusted()

    def check_pages(self, num_pages: int) -> None:
        """Checks that every page id that a row uses lies in `[0, num_pages)`; padding is not looked at, nor are indices
        that live on a device.

        Raises:
            IndexFormatError: naming the level, row and entry.
        """
        from attnloom.index_check import check_pages

        check_pages(self, num_pages)

    def max_page(self) -> int:
        """The highest page id that a row uses; -1 where none is used or the indices live on a device."""
        from attnloom.index_check import max_page

        return max_page(self)

    def to_dense(self, kv_head: int = 0):
        """The same index spelled out pair by pair, for tests and pictures: a `attnloom.dense_index.DenseIndex`.

        Args:
            kv_head: whose page list to follow where a level has one for each head.
        """
        from attnloom.dense_index import to_dense

        return to_dense(self, kv_head)


_INDEX_ARRAYS = {name: "i4" for name in ("qo_indptr", "kv_len", "token_request", "q_pos")}
_LEVEL_ARRAYS = {
    **{name: "i4" for name in ("row_indptr", "row_tokens", "kv_len", "kv_start", "kv_offset", "block_pos", "key_pos")},
    **{name: "i8" for name in ("page_begin", "mask_begin", "key_pos_begin")},
    "mask_bits": "u4",
    "indices": "pages",
}
_set = object.__setattr__


def _normalize(instance, kinds: dict[str, str]) -> None:
    """Turns attributes into the arrays that kernels read; the module that does it comes with numpy, hence late."""
    global _normalize
    from attnloom.index_arrays import normalize as _normalize

    _normalize(instance, kinds)


@frozen(kw_only=True)
class StorageFormat:
    """A named way to turn a cache manager's data into a `ComposedIndex`. Stateless and shared.

    Attributes:
        builder: `"module:fn"` of `fn(qo_lens, kv_lens, page_size, **what_the_format_needs) -> ComposedIndex`.
        doc: what it needs, a line.
        example: `"module:fn"`, called as `fn(rng, qo_lens, kv_lens, page_size)`; returns `(needs, slots)`: what the
            builder is given for such a batch, and for each request the cache slots of its keys, in order; and a third,
            bool [qo_len, kv_len] for each request, where tokens do not see all keys. None: the format has no
            such batch. What `attnloom.testing` and `attnloom plugins check` try the format with.
        manager: `"module:Class"` of the cache manager that hands out the slots, with the methods of
            `attnloom.pages.PagePool` or those of a radix tree; none where the format has none.
        options: keyword arguments of the builder under those of the caller, such as the plugin's settings.
    """

    name: str = field(validator=_check_name)
    builder: str = field(validator=_check_module_attr)
    doc: str = ""
    example: str | None = field(default=None, validator=_optional_module_attr)
    manager: str | None = field(default=None, validator=_optional_module_attr)
    options: Mapping[str, Any] = field(factory=dict, converter=dict)

    def build_index(self, qo_lens, kv_lens, page_size: int | None = None, **needs) -> ComposedIndex:
        """The index of one batch: `qo_lens` and `kv_lens` are host integers, one a request, either may be 0.

        `kv_lens` count the keys of the batch's own tokens too. Only `dense` can do without a `page_size`. What else
        the format needs stands in its `doc` and in its builder's docstring.

        Raises:
            IndexFormatError: for lengths, page ids or structures that contradict each other, and for arguments that
                the format does not take.
            PluginError: the builder cannot be imported, or returns something else.
        """
        try:
            build = resolve(self.builder)
        except (ImportError, AttributeError) as error:
            raise PluginError(
                f"storage format {self.name!r}: its builder {self.builder!r} cannot be imported: {error}; name it in "
                "the descriptor as module:function"
            ) from error
        arguments = {**self.options, **needs}
        try:
            index = build(qo_lens, kv_lens, page_size, **arguments)
        except TypeError as error:
            self._check_arguments(build, arguments, error)
            raise
        if not isinstance(index, ComposedIndex):
            raise PluginError(
                f"storage format {self.name!r}: {self.builder} returned {type(index).__name__}, expected ComposedIndex"
            )
        return index

    def _check_arguments(self, build, arguments: dict[str, Any], cause: TypeError) -> None:
        """Raise `IndexFormatError` if the builder cannot be called with `arguments` at all."""
        import inspect

        from attnloom.plugins.naming import did_you_mean

        parameters = inspect.signature(build).parameters.values()
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            return
        takes = [parameter.name for parameter in parameters][3:]
        where = f"storage format {self.name!r}"
        for name in arguments:
            if name not in takes:
                hint = did_you_mean(name, takes)
                raise IndexFormatError(f"{where} takes no {name!r}{hint} (it takes: {', '.join(takes)})") from cause
        for parameter in list(parameters)[3:]:
            if parameter.default is inspect.Parameter.empty and parameter.name not in arguments:
                told = f" ({self.doc})" if self.doc else ""
                raise IndexFormatError(f"{where} needs {parameter.name!r}{told}") from cause
