"""Batches for the scheduler's tests: an index from plain lists, and a library built once."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import attnloom
import attnloom_scheduler
import numpy as np
from attnloom.abi import IndexView
from attnloom_scheduler import PlanInput, TileClass, address_of
from attnloom_scheduler.inputs import RangeFn

FLAGS = ("-std=c++20", "-O3", "-shared", "-fPIC")


def build_library(folder: Path, flags: tuple[str, ...] = FLAGS) -> Path:
    """Builds the scheduler's library in `folder` and says where it is."""
    target = folder / "scheduler.so"
    core = Path(attnloom.__file__).parent / "include"
    command = [os.environ.get("CXX", "g++"), *flags, f"-I{core}", f"-I{attnloom_scheduler.include_dir()}"]
    subprocess.run([*command, *map(str, attnloom_scheduler.sources()), "-o", str(target)], check=True)
    return target


class Batch:
    """Block rows of one or more levels, held as numpy arrays, and the `IndexView` over them.

    `levels` is a list of levels, each a list of `(tokens, kv_len, kv_start)`; `tokens` is a count where all rows of the
    level are contiguous, else a list. `qo_lens` are those of the requests.
    """

    def __init__(self, qo_lens, levels):
        self.qo_lens = list(qo_lens)
        self.qo_indptr = np.concatenate([[0], np.cumsum(self.qo_lens)]).astype(np.int32)
        self.token_request = np.repeat(np.arange(len(self.qo_lens)), self.qo_lens).astype(np.int32)
        self.levels = [_level(rows) for rows in levels]
        self.view = IndexView(
            qo_indptr=address_of(self.qo_indptr),
            token_request=address_of(self.token_request),
            num_requests=len(self.qo_lens),
            num_tokens=len(self.token_request),
            page_size=16,
            num_levels=len(levels),
        )
        for view, level in zip(self.view.levels, self.levels, strict=False):
            for name, array in vars(level).items():
                if array is not None:
                    setattr(view, name, address_of(array))
            view.num_rows = len(level.kv_len)

    @property
    def num_tokens(self) -> int:
        return len(self.token_request)

    def tokens(self, level: int, begin: int, count: int) -> list[int]:
        """The tokens of entries `[begin, begin + count)` of a level."""
        row_tokens = self.levels[level].row_tokens
        return list(range(begin, begin + count)) if row_tokens is None else row_tokens[begin : begin + count].tolist()


def _level(rows):
    counts = [tokens if isinstance(tokens, int) else len(tokens) for tokens, _, _ in rows]
    listed = any(not isinstance(tokens, int) for tokens, _, _ in rows)
    row_tokens = np.concatenate([np.asarray(tokens, np.int32) for tokens, _, _ in rows] or [[]]) if listed else None
    return SimpleNamespace(
        row_indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        row_tokens=None if row_tokens is None else row_tokens.astype(np.int32),
        kv_len=np.array([kv_len for _, kv_len, _ in rows], np.int32),
        kv_start=np.array([kv_start for _, _, kv_start in rows], np.int32),
        kv_offset=np.arange(len(rows), dtype=np.int32) % 16,
        page_begin=np.arange(len(rows), dtype=np.int64) * 7,
    )


def plain(qo_lens, kv_lens) -> Batch:
    """One level, one block row a request."""
    return Batch(qo_lens, [[(int(q), int(k), 0) for q, k in zip(qo_lens, kv_lens, strict=True)]])


SHORT = {"t_q": 16, "t_kv": 64, "alpha": 2_000_000, "beta": 20_000}
TALL = {"t_q": 128, "t_kv": 64, "alpha": 3_000_000, "beta": 40_000}


def inputs(batch: Batch, *, classes=(SHORT, TALL), ranges=None, **fields) -> PlanInput:
    """A `PlanInput` for `batch`; `ranges(level, row, q_begin, q_tokens) -> intervals` becomes its range function."""
    defaults = {
        "num_workers": 132,
        "num_kv_heads": 8,
        "group": 4,
        "merge_base": 3_000_000,
        "gamma": 40_000,
        "cache_bytes": 50 << 20,
        "kv_bytes_per_key": 512,
    }
    result = PlanInput(classes=[TileClass(**c) for c in classes], **{**defaults, **fields})
    result.index = ctypes.addressof(batch.view)
    result.batch = batch
    result.ranges = None
    if ranges is not None:
        result.ranges = ranges

        def call(_ctx, level, row, q_begin, q_tokens, bounds):
            intervals = ranges(level, row, q_begin, q_tokens)
            for i, (low, high) in enumerate(intervals[:2]):
                bounds[2 * i], bounds[2 * i + 1] = low, high
            return len(intervals)

        result.callback = RangeFn(call)
        result.range_fn = ctypes.cast(result.callback, ctypes.c_void_p)
    return result
