"""Plans and kernels made by hand: no planner, no wrapper, so that a kernel's own faults are seen."""

from __future__ import annotations

import ctypes
import functools
from itertools import pairwise

import numpy as np
import torch
from attnloom import jit
from attnloom.abi import ARGS_ABI, RunArgs
from attnloom.dtypes import CODES, torch_dtype
from attnloom.jit.host_kernel import KernelConfig, source
from attnloom.scales import UNSCALED
from attnloom.tile import Tile
from attrs import Factory, define

ITEM = np.dtype(
    [
        ("page_begin", "i8"),
        ("q_begin", "i4"),
        ("q_tokens", "i4"),
        ("request", "i4"),
        ("kv_begin", "i4"),
        ("kv_end", "i4"),
        ("kv_start", "i4"),
        ("kv_offset", "i4"),
        ("level_row", "i4"),
        ("row_tokens_before", "i4"),
        ("row_kv_len", "i4"),
        ("part_row", "i4"),
        ("merge_id", "i4"),
        ("head0", "u2"),
        ("heads", "u2"),
        ("level", "u1"),
        ("tile_class", "u1"),
        ("flags", "u2"),
    ]
)
_COUNTS = ["abi", "workers", "items", "merge", "parts", "part_rows", "classes"]
_COUNTS += ["t_q0", "t_q1", "t_kv0", "t_kv1", "fused_merge"]
_OFFSETS = ["queues", "rest", "merge_token", "merge_head", "merge_indptr", "merge_part", "arrived"]
HEADER = np.dtype([(name, "i4") for name in _COUNTS] + [(name, "i8") for name in [*_OFFSETS, "total"]])
WORKER = np.dtype([("first", ITEM), ("next", "i4"), ("end", "i4"), ("reserved", "i4", 2)])
assert ITEM.itemsize == 64 and WORKER.itemsize == 80

NO_VARIANT = """#include <attnloom/compose.h>
namespace attnloom::generated { struct Params {}; using Variant = attnloom::Composed<Params>; }
"""


def one_variant(text: str, struct: str, params: str = "") -> str:
    """The composition of one struct defined in `text` with the fields `params`."""
    return f"""#include <attnloom/compose.h>
{text}
namespace attnloom::generated {{
struct One {{ {params} }};
struct Params {{ One one; }};
using Variant = attnloom::Composed<Params, attnloom::Member<{struct}, &Params::one>>;
}}
"""


@define
class Level:
    """Block rows as plain lists; `pages` are the page ids of each row (or of each kv head and row)."""

    tokens: list  # of each row: a list of query tokens
    kv_len: list
    kv_start: list
    kv_offset: list
    pages: list
    page_pos: list | None = None  # of each row: positions of its pages' first tokens
    mask: list | None = None  # of each row: bool[tokens, kv_len] or None
    key_pos: list | None = None  # of each row: positions or None


@define
class Batch:
    """Requests over one cache. `q_pos` as in the index."""

    qo_lens: list
    kv_lens: list
    page_size: int
    levels: list
    q_pos: list | None = None
    keep: list = Factory(list)

    @property
    def token_request(self):
        return np.repeat(np.arange(len(self.qo_lens), dtype=np.int32), self.qo_lens)

    @property
    def qo_indptr(self):
        return np.concatenate([[0], np.cumsum(self.qo_lens)]).astype(np.int32)


@functools.cache
def load(text: str, dtype="float32", kv_dtype=None, out_dtype=None, d=64, d_v=None, short=(16, 64), tall=(64, 64)):
    """A kernel library, compiled once a cache."""
    config = KernelConfig(
        dtype=dtype,
        kv_dtype=kv_dtype or dtype,
        out_dtype=out_dtype or dtype,
        head_dim=d,
        head_dim_v=d_v or d,
        short=Tile(*short),
        tall=Tile(*tall),
    )
    unit = jit.CompileUnit(
        name="test", sources={"kernel.cpp": source(text, config)}, include_dirs=jit.include_dirs(), owners={}
    )
    library = ctypes.CDLL(str(jit.build(unit).path))
    library.attnloom_info.restype = ctypes.c_char_p
    library.config = config
    return library


def _address(batch: Batch, array, dtype) -> int | None:
    if array is None:
        return None
    array = np.ascontiguousarray(array, dtype=dtype)
    if array.size == 0:
        array = np.zeros(1, dtype)
    batch.keep.append(array)
    return array.ctypes.data


def fill_index(args: RunArgs, batch: Batch, wide: bool = False) -> None:
    index = args.index
    index.qo_indptr = _address(batch, batch.qo_indptr, np.int32)
    index.kv_len = _address(batch, batch.kv_lens, np.int32)
    index.token_request = _address(batch, batch.token_request, np.int32)
    index.q_pos = _address(batch, batch.q_pos, np.int32)
    index.num_requests, index.num_tokens = len(batch.qo_lens), sum(batch.qo_lens)
    index.page_size, index.num_levels = batch.page_size, len(batch.levels)
    for view, level in zip(index.levels, batch.levels, strict=False):
        rows = len(level.tokens)
        view.num_rows = rows
        flat = [token for tokens in level.tokens for token in tokens]
        view.row_indptr = _address(batch, np.cumsum([0, *map(len, level.tokens)]), np.int32)
        contiguous = flat == list(range(len(flat)))
        view.row_tokens = None if contiguous else _address(batch, flat, np.int32)
        for name in ("kv_len", "kv_start", "kv_offset"):
            setattr(view, name, _address(batch, getattr(level, name), np.int32))
        view.page_begin = _address(batch, page_begins(level), np.int64)
        per_head = len(level.pages) > 0 and isinstance(level.pages[0], tuple)
        heads = level.pages if per_head else [level.pages]
        table = np.array([[page for row in pages for page in row] for pages in heads])
        view.indices = _address(batch, table, np.int64 if wide else np.int32)
        view.indices_head_stride = table.shape[1] if per_head else 0
        view.indices_are_64 = int(wide)
        if level.page_pos is not None:
            view.block_pos = _address(batch, np.concatenate([*level.page_pos, []]), np.int32)
        if level.mask is not None:
            words, begins, at = [], [], 0
            for mask in level.mask:
                begins.append(-1 if mask is None else at)
                if mask is not None:
                    bits = np.packbits(np.ravel(mask), bitorder="little")
                    words.append(np.pad(bits, (0, -len(bits) % 4)).view(np.uint32))
                    at += len(words[-1])
            view.mask_bits = _address(batch, np.concatenate([*words, np.zeros(0)]), np.uint32)
            view.mask_begin = _address(batch, begins, np.int64)
        if level.key_pos is not None:
            lens = [0 if pos is None else len(pos) for pos in level.key_pos]
            begin = np.cumsum([0, *lens])[:-1]
            view.key_pos = _address(batch, np.concatenate([pos for pos in level.key_pos if pos is not None]), np.int32)
            view.key_pos_begin = _address(batch, np.where(np.array(lens) > 0, begin, -1), np.int64)


def page_begins(level: Level):
    pages = level.pages[0] if len(level.pages) > 0 and isinstance(level.pages[0], tuple) else level.pages
    return np.cumsum([0, *map(len, pages)])[:-1] if len(pages) else np.zeros(0)


def make_plan(library, batch: Batch, heads: int, group: int, *, workers=2, splits=0.0, rng=None, tile_class=None):
    """A plan buffer: every row cut to t_q, and with probability `splits` at each multiple of t_kv and between heads."""
    rng = rng or np.random.default_rng(0)
    config = library.config
    classes = config.tile_classes
    items, parts, part_rows, seen = [], {}, 0, {}
    token_request = batch.token_request
    for level in batch.levels:
        for tokens in level.tokens:
            for token in tokens:
                seen[token] = seen.get(token, 0) + 1
    for number, level in enumerate(batch.levels):
        first_of_row = np.cumsum([0, *map(len, level.tokens)])
        flat = [token for tokens in level.tokens for token in tokens]
        contiguous = flat == list(range(len(flat)))
        for row, tokens in enumerate(level.tokens):
            chosen = tile_class if tile_class is not None else int(len(tokens) * group > classes[0].t_q)
            tile = classes[chosen]
            step = max(1, tile.t_q // group)
            for begin in range(0, len(tokens), step):
                count = min(step, len(tokens) - begin)
                cut = [0] + [j for j in range(tile.t_kv, level.kv_len[row], tile.t_kv) if rng.random() < splits]
                cut = [*cut, level.kv_len[row]]
                head_cuts = [0] + [h for h in range(1, heads) if rng.random() < splits] + [heads]
                requests = {int(token_request[t]) for t in tokens[begin : begin + count]}
                partial = len(cut) > 2 or any(seen[t] > 1 for t in tokens[begin : begin + count])
                for head0, head1 in pairwise(head_cuts):
                    for kv_begin, kv_end in pairwise(cut):
                        item = np.zeros((), ITEM)
                        item["page_begin"] = page_begins(level)[row]
                        item["q_begin"] = first_of_row[row] + begin if not contiguous else tokens[begin]
                        item["q_tokens"] = count
                        item["request"] = next(iter(requests)) if len(requests) == 1 else -1
                        item["kv_begin"], item["kv_end"] = kv_begin, kv_end
                        item["kv_start"], item["kv_offset"] = level.kv_start[row], level.kv_offset[row]
                        item["level_row"], item["row_tokens_before"] = row, begin
                        item["row_kv_len"] = level.kv_len[row]
                        item["head0"], item["heads"] = head0, head1 - head0
                        item["level"], item["tile_class"] = number, chosen
                        item["part_row"], item["merge_id"] = -1, -1
                        if partial:
                            item["part_row"] = part_rows
                            for h in range(head0, head1):
                                for r in range(count * group):
                                    key = tokens[begin + r // group], h * group + r % group
                                    order = level.kv_start[row] + kv_begin
                                    parts.setdefault(key, []).append((order, part_rows))
                                    part_rows += 1
                        items.append(item)
    queues = [[items[i] for i in range(len(items)) if i % workers == w] for w in range(workers)]
    return _pack(queues, parts, part_rows, classes)


def _pack(queues, parts, part_rows, classes):
    workers = np.zeros(len(queues), WORKER)
    rest = np.array([item for queue in queues for item in queue[1:]], ITEM)
    indptr = np.cumsum([0] + [max(len(queue) - 1, 0) for queue in queues])
    workers["next"], workers["end"] = indptr[:-1], indptr[1:]
    for worker, queue in zip(workers, queues, strict=True):
        if queue:
            worker["first"] = queue[0]
    keys = sorted(parts)
    merged = [[row for _, row in sorted(parts[key])] for key in keys]
    arrays = [
        workers,
        rest,
        np.array([token for token, _ in keys], np.int32),
        np.array([head for _, head in keys], np.int32),
        np.cumsum([0, *map(len, merged)]).astype(np.int32),
        np.array([row for rows in merged for row in rows], np.int32),
        np.zeros(len(keys), np.int32),
    ]
    offsets, at = [], -(-HEADER.itemsize // 64) * 64
    for array in arrays:
        offsets.append(at)
        at += -(-array.nbytes // 64) * 64
    header = np.zeros((), HEADER)
    header["abi"], header["workers"], header["items"] = 2, len(queues), len(rest) + len(queues)
    header["merge"], header["parts"], header["part_rows"] = len(keys), sum(map(len, merged)), part_rows
    header["classes"] = 2
    for i, tile in enumerate(classes):
        header[f"t_q{i}"], header[f"t_kv{i}"] = tile.t_q, tile.t_kv
    for name, offset in zip(_OFFSETS, offsets, strict=True):
        header[name] = offset
    header["total"] = at
    buffer = np.zeros(at, np.uint8)
    buffer[: HEADER.itemsize] = np.frombuffer(header.tobytes(), np.uint8)
    for array, offset in zip(arrays, offsets, strict=True):
        buffer[offset : offset + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return buffer, part_rows


def launch(library, batch, q, k, v, plan, **options):
    """Run `library` on torch tensors; out, lse and the workspace are poisoned first. Returns `(out, lse)`."""
    args, out, lse = prepare(library, batch, q, k, v, plan, **options)
    status = library.attnloom_run(ctypes.byref(args))
    assert status == 0, status
    return out, lse


def prepare(library, batch, q, k, v, plan, *, sm_scale, params=None, k_scale=None, v_scale=None, wide=False, threads=1):
    """The arguments of one run, `(args, out, lse)`; `batch` keeps alive what they point to."""
    plan, part_rows = plan
    config = library.config
    args = RunArgs()
    args.abi, args.num_threads = ARGS_ABI, threads
    args.num_qo_heads, args.num_kv_heads = q.shape[1], k.shape[2]
    args.head_dim, args.head_dim_v = config.head_dim, config.head_dim_v
    args.dtype, args.kv_dtype, args.out_dtype = CODES[config.dtype], CODES[config.kv_dtype], CODES[config.out_dtype]
    args.num_pages = k.shape[0]
    out = torch.full((q.shape[0], q.shape[1], config.head_dim_v), float("nan"), dtype=torch_dtype(config.out_dtype))
    lse = torch.full((q.shape[0], q.shape[1]), float("nan"))
    workspace = torch.full((part_rows + 1, config.head_dim_v + 2), float("nan"))
    args.q.data, args.q.stride_token, args.q.stride_head = q.data_ptr(), q.stride(0), q.stride(1)
    args.out.data, args.out.stride_token, args.out.stride_head = out.data_ptr(), out.stride(0), out.stride(1)
    for view, tensor in ((args.k, k), (args.v, v)):
        view.data, view.stride_page, view.stride_slot, view.stride_head = tensor.data_ptr(), *tensor.stride()[:3]
    args.lse, args.lse_stride_token = lse.data_ptr(), lse.stride(0)
    args.sm_scale = sm_scale
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is not None:
            setattr(args, name, (_address(batch, scale, np.float32), 1.0, int(len(np.atleast_1d(scale)) > 1)))
        else:
            setattr(args, name, UNSCALED)
    blob = params if params is not None else ctypes.create_string_buffer(8)
    args.params = ctypes.addressof(blob)
    args.plan = plan.ctypes.data
    args.partial_o = workspace.data_ptr()
    args.partial_md = workspace.data_ptr() + part_rows * config.head_dim_v * 4
    fill_index(args, batch, wide)
    batch.keep += [blob, plan, workspace, out, lse, q, k, v]
    return args, out, lse
