"""What an index must satisfy, checked on the host, vectorised, with the place of the first contradiction."""

from __future__ import annotations

import numpy as np

from attnloom.errors import IndexFormatError
from attnloom.index import MAX_LEVELS, ComposedIndex, Level
from attnloom.index_arrays import check_page_size, is_tensor

_UNSIGNED = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


def check_index(index: ComposedIndex) -> None:
    """Raises `IndexFormatError` for the first contradiction in `index`, its levels and its `single` view."""
    check_page_size(index.page_size)
    _check_requests(index)
    if len(index.levels) > MAX_LEVELS:
        raise IndexFormatError(f"the index has {len(index.levels)} levels, at most {MAX_LEVELS} are allowed")
    spans = [_check_level(index, level, f"levels[{number}]") for number, level in enumerate(index.levels)]
    _check_every_token_has_a_row(index, spans)
    _check_levels_are_disjoint(spans)
    if index.single is not None:
        _check_single(index)


def _check_requests(index: ComposedIndex) -> None:
    indptr, kv_len, tokens = index.qo_indptr, index.kv_len, index.num_tokens
    if len(indptr) != len(kv_len) + 1:
        raise IndexFormatError(
            f"qo_indptr has {len(indptr)} offsets, expected {len(kv_len) + 1} for {len(kv_len)} request(s)"
        )
    if indptr[0] != 0:
        raise IndexFormatError(f"qo_indptr[0] is {indptr[0]}, expected 0")
    _check_monotone(indptr, "qo_indptr")
    if indptr[-1] != tokens:
        raise IndexFormatError(f"qo_indptr ends at {indptr[-1]}, token_request has {tokens} token(s)")
    _check_none(kv_len < 0, kv_len, "kv_len", "at least 0")
    expected = np.repeat(np.arange(len(kv_len), dtype=np.int32), np.diff(indptr))
    if (at := _first(index.token_request != expected)) is not None:
        found = index.token_request[at]
        raise IndexFormatError(f"token_request[{at}] is {found}, qo_indptr puts that token in request {expected[at]}")
    if index.q_pos is not None and len(index.q_pos) != tokens:
        raise IndexFormatError(f"q_pos has {len(index.q_pos)} position(s), expected one for each of {tokens} token(s)")


def _check_level(index: ComposedIndex, level: Level, where: str):
    """Checks one level; returns the keys of each token there: `(has_row bool[T], first i64[T], end i64[T])`."""
    rows = level.num_rows
    lengths = {"row_indptr": rows + 1, "kv_start": rows, "kv_offset": rows, "page_begin": rows}
    lengths |= {name: rows for name in ("mask_begin", "key_pos_begin") if getattr(level, name) is not None}
    for name, expected in lengths.items():
        if len(getattr(level, name)) != expected:
            found = len(getattr(level, name))
            raise IndexFormatError(f"{where}.{name} has {found} element(s), expected {expected} for {rows} row(s)")
    _check_monotone(level.row_indptr, f"{where}.row_indptr")
    for name in ("kv_len", "kv_start", "kv_offset"):
        values = getattr(level, name)
        _check_none(values < 0, values, f"{where}.{name}", "at least 0")
    below = f"less than the page size {index.page_size}"
    _check_none(level.kv_offset >= index.page_size, level.kv_offset, f"{where}.kv_offset", below)
    _check_entries(index, level, where)
    tokens, row_of = _tokens_of_rows(index, level, where)
    _check_within_requests(index, level, tokens, row_of, where)
    _check_payload(level, "mask_bits", "mask_begin", 32, np.diff(level.row_indptr).astype(np.int64), where)
    _check_payload(level, "key_pos", "key_pos_begin", 1, np.ones(rows, np.int64), where)
    has_row = np.zeros(index.num_tokens, bool)
    first, end = np.zeros((2, index.num_tokens), np.int64)
    has_row[tokens] = True
    first[tokens] = level.kv_start[row_of]
    end[tokens] = level.kv_start[row_of].astype(np.int64) + level.kv_len[row_of]
    return has_row, first, end


def _check_entries(index: ComposedIndex, level: Level, where: str) -> None:
    """Every row's entries lie within `indices`."""
    shape = tuple(level.indices.shape)
    if len(shape) != (2 if level.per_head else 1):
        expected = "[num_kv_heads, nnz] with per_head" if level.per_head else "[nnz]"
        raise IndexFormatError(f"{where}.indices has shape {list(shape)}, expected {expected}")
    stride = (
        level.indices.stride(-1) if is_tensor(level.indices) else level.indices.strides[-1] // level.indices.itemsize
    )
    if stride != 1 and shape[-1] > 1:
        raise IndexFormatError(f"{where}.indices has a last stride of {stride}, expected 1; make it contiguous")
    entries = page_counts(index, level)
    used = entries > 0
    outside = used & ((level.page_begin < 0) | (level.page_begin > shape[-1] - entries))
    if (row := _first(outside)) is not None:
        begin, end = int(level.page_begin[row]), int(level.page_begin[row]) + int(entries[row])
        raise IndexFormatError(
            f"{where}: row {row} with {level.kv_len[row]} key(s) from slot {level.kv_offset[row]} uses entries "
            f"[{begin}, {end}) of indices, which has {shape[-1]}"
        )
    if level.block_pos is not None and len(level.block_pos) != shape[-1]:
        raise IndexFormatError(
            f"{where}.block_pos has {len(level.block_pos)} position(s), indices has {shape[-1]} entries"
        )


def _tokens_of_rows(index: ComposedIndex, level: Level, where: str):
    """`(tokens, row of each)`, after checking that they exist and that none is named twice."""
    begin, end = int(level.row_indptr[0]), int(level.row_indptr[-1])
    if level.row_tokens is None:
        if begin < 0 or end > index.num_tokens:
            raise IndexFormatError(
                f"{where}.row_indptr spans [{begin}, {end}) of the tokens, the batch has {index.num_tokens}"
            )
        return np.arange(begin, end), _row_of(level)
    if begin < 0 or end > len(level.row_tokens):
        raise IndexFormatError(
            f"{where}.row_indptr spans [{begin}, {end}) of row_tokens, which has {len(level.row_tokens)} element(s)"
        )
    tokens = level.row_tokens[begin:end]
    outside = (tokens < 0) | (tokens >= index.num_tokens)
    if (at := _first(outside)) is not None:
        raise IndexFormatError(
            f"{where}.row_tokens[{begin + at}] is {tokens[at]}, the batch has {index.num_tokens} token(s)"
        )
    times = np.bincount(tokens, minlength=index.num_tokens)
    if (token := _first(times > 1)) is not None:
        raise IndexFormatError(f"{where} holds token {token} {times[token]} times; a token sits in one row of a level")
    return tokens, _row_of(level)


def _row_of(level: Level):
    """The row of each token that `row_indptr`, whose end is known to be sound, gives to one."""
    return np.repeat(np.arange(level.num_rows), np.diff(level.row_indptr))


def _check_within_requests(index: ComposedIndex, level: Level, tokens, row_of, where: str) -> None:
    end = level.kv_start.astype(np.int64) + level.kv_len
    requests = index.token_request[tokens]
    beyond = (level.kv_len[row_of] > 0) & (end[row_of] > index.kv_len[requests])
    if (at := _first(beyond)) is not None:
        row, request = row_of[at], requests[at]
        raise IndexFormatError(
            f"{where}: row {row} ends at key {end[row]} (kv_start {level.kv_start[row]} + kv_len {level.kv_len[row]}), "
            f"its request {request} has {index.kv_len[request]} key(s)"
        )


def _check_payload(level: Level, name: str, begin_name: str, unit: int, per_key, where: str) -> None:
    """`name` and its offsets come together and hold each row's part, `per_key * kv_len` of `unit` to an element."""
    payload, begin = getattr(level, name), getattr(level, begin_name)
    if (payload is None) != (begin is None):
        missing = name if payload is None else begin_name
        raise IndexFormatError(f"{where}: {name} and {begin_name} come together; {missing} is missing")
    if payload is None:
        return
    _check_none(begin < -1, begin, f"{where}.{begin_name}", "at least -1")
    need = -(-(per_key * level.kv_len) // unit)
    short = (begin >= 0) & (begin > len(payload) - need)
    if (row := _first(short)) is not None:
        span = f"[{begin[row]}, {int(begin[row]) + int(need[row])})"
        raise IndexFormatError(f"{where}: row {row} reads {name}{span}, which has {len(payload)} element(s)")


def _check_every_token_has_a_row(index: ComposedIndex, spans) -> None:
    has_row = np.zeros(index.num_tokens, bool)
    for present, _, _ in spans:
        has_row |= present
    if (token := _first(~has_row)) is not None:
        raise IndexFormatError(f"token {token} is in no row of any level; give it one, of no keys if it sees none")


def _check_levels_are_disjoint(spans) -> None:
    for b, (_, first_b, end_b) in enumerate(spans):
        for a, (_, first_a, end_a) in enumerate(spans[:b]):
            overlap = np.maximum(first_a, first_b) < np.minimum(end_a, end_b)
            if (token := _first(overlap)) is not None:
                raise IndexFormatError(
                    f"token {token} sees keys [{first_a[token]}, {end_a[token]}) in levels[{a}] and "
                    f"[{first_b[token]}, {end_b[token]}) in levels[{b}]; a pair appears at one level only"
                )


def _check_single(index: ComposedIndex) -> None:
    single = index.single
    if len(single.levels) != 1 or single.single is not None:
        raise IndexFormatError(f"single has {len(single.levels)} levels, expected 1 and no further single")
    for name in ("qo_indptr", "kv_len"):
        if not np.array_equal(getattr(single, name), getattr(index, name)):
            raise IndexFormatError(f"single.{name} differs from the index's own")
    if single.page_size != index.page_size:
        raise IndexFormatError(f"single.page_size is {single.page_size}, the index's is {index.page_size}")
    check_index(single)


def page_counts(index: ComposedIndex, level: Level):
    """i64[R]: entries of `indices` that each row uses."""
    return np.where(level.kv_len > 0, -(-(level.kv_offset.astype(np.int64) + level.kv_len) // index.page_size), 0)


def check_pages(index: ComposedIndex, num_pages: int) -> None:
    """Raises `IndexFormatError` for a page id in use outside `[0, num_pages)`; device indices are not looked at."""
    for number, level in enumerate(index.levels):
        pages = _host_pages(level)
        if pages is None or not pages.size or _largest_bits(pages) < num_pages:
            continue
        wrong = ((pages < 0) | (pages >= num_pages)) & _used(index, level)
        if (at := _first(wrong.reshape(-1))) is not None:
            *head, entry = np.unravel_index(at, pages.shape)
            ends = level.page_begin + page_counts(index, level)
            row = _first((level.page_begin <= entry) & (entry < ends))
            place = f"entry {entry} of indices" + (f" of kv head {head[0]}" if head else "")
            raise IndexFormatError(
                f"levels[{number}]: row {row} uses page {pages[(*head, entry)]} ({place}), "
                f"the cache has {num_pages} page(s)"
            )
    if index.single is not None:
        check_pages(index.single, num_pages)


def max_page(index: ComposedIndex) -> int:
    """The highest page id in use, -1 for none or device indices."""
    highest = -1
    for level in index.levels:
        pages = _host_pages(level)
        if pages is not None and pages.size:
            highest = max(highest, int(pages[..., _used(index, level)].max(initial=-1)))
    return highest


def _host_pages(level: Level):
    if not is_tensor(level.indices):
        return level.indices
    return level.indices.numpy() if level.indices.device.type == "cpu" else None


def _largest_bits(pages) -> int:
    """The largest page id read as unsigned, as which those below 0 are past any cache: one look finds both."""
    unsigned = pages.view(_UNSIGNED[pages.itemsize])
    return unsigned.item(unsigned.argmax())


def _used(index: ComposedIndex, level: Level):
    """bool[nnz]: which entries of `indices` some row uses."""
    counts, begin, entries = page_counts(index, level), level.page_begin, level.indices.shape[-1]
    width = -(-entries // max(level.num_rows, 1))
    if begin.size and counts.max() <= width and np.array_equal(begin, np.arange(0, begin.size * width, width)):
        return np.less(np.arange(width), counts[:, None]).reshape(-1)[:entries]
    begin, counts = begin[counts > 0], counts[counts > 0]
    opened = np.bincount(begin, minlength=entries + 1)
    closed = np.bincount(begin + counts, minlength=entries + 1)
    return np.cumsum(opened - closed)[:-1] > 0


def _first(wrong) -> int | None:
    """Place of the first true element."""
    return int(wrong.argmax()) if wrong.any() else None


def _check_none(wrong, values, what: str, expected: str) -> None:
    if (at := _first(wrong)) is not None:
        raise IndexFormatError(f"{what}[{at}] is {values[at]}, expected {expected}")


def _check_monotone(indptr, what: str) -> None:
    if (at := _first(indptr[1:] < indptr[:-1])) is not None:
        raise IndexFormatError(f"{what} decreases from {indptr[at]} to {indptr[at + 1]} at {at + 1}")
    if len(indptr) and indptr[0] < 0:
        raise IndexFormatError(f"{what}[0] is {indptr[0]}, expected at least 0")
