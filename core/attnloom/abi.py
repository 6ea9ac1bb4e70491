"""ctypes mirror of `include/attnloom/args.h`: what a compiled kernel is called with."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

from attnloom.index import MAX_LEVELS

ARGS_ABI = 6


class LevelView(ctypes.Structure):
    """Addresses of one level's arrays."""

    _fields_ = (
        ("row_indptr", c_void_p),
        ("row_tokens", c_void_p),
        ("kv_len", c_void_p),
        ("kv_start", c_void_p),
        ("kv_offset", c_void_p),
        ("page_begin", c_void_p),
        ("indices", c_void_p),
        ("indices_head_stride", c_int64),
        ("block_pos", c_void_p),
        ("mask_bits", c_void_p),
        ("mask_begin", c_void_p),
        ("key_pos", c_void_p),
        ("key_pos_begin", c_void_p),
        ("indices_are_64", c_int32),
        ("num_rows", c_int32),
    )


class IndexView(ctypes.Structure):
    """Addresses of a `ComposedIndex`."""

    _fields_ = (
        ("qo_indptr", c_void_p),
        ("kv_len", c_void_p),
        ("token_request", c_void_p),
        ("q_pos", c_void_p),
        ("num_requests", c_int32),
        ("num_tokens", c_int32),
        ("page_size", c_int32),
        ("num_levels", c_int32),
        ("ahead", c_void_p),
        ("num_ahead", c_int64),
        ("levels", LevelView * MAX_LEVELS),
    )


class IndexBytes(ctypes.Structure):
    """What an `IndexView` does not tell of its arrays; mirror of `csrc/index_bytes.h`."""

    _fields_ = (("device_kv_len", c_void_p), ("levels", c_int64 * 4 * MAX_LEVELS))


class CacheView(ctypes.Structure):
    """A cache of `[pages, page_size, kv_heads, head_dim]`, strides in elements."""

    _fields_ = (
        ("data", c_void_p),
        ("stride_page", c_int64),
        ("stride_slot", c_int64),
        ("stride_head", c_int64),
    )


class RaggedView(ctypes.Structure):
    """A ragged tensor of `[tokens, heads, head_dim]`, strides in elements."""

    _fields_ = (("data", c_void_p), ("stride_token", c_int64), ("stride_head", c_int64))


class Scale(ctypes.Structure):
    """What cached values are multiplied with: `number`, where there are no `values`."""

    _fields_ = (("values", c_void_p), ("number", c_float), ("stride", c_int32))


class RunArgs(ctypes.Structure):
    """The one argument of a kernel; the launcher fills the tensor views, the wrapper the rest."""

    _fields_ = (
        ("abi", c_int32),
        ("num_threads", c_int32),
        ("num_qo_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("head_dim_v", c_int32),
        ("dtype", c_int32),
        ("kv_dtype", c_int32),
        ("out_dtype", c_int32),
        ("min_pages", c_int32),
        ("num_pages", c_int64),
        ("q", RaggedView),
        ("k", CacheView),
        ("v", CacheView),
        ("out", RaggedView),
        ("lse", c_void_p),
        ("lse_stride_token", c_int64),
        ("sm_scale", c_float),
        ("q_tokens", c_int32),
        ("k_scale", Scale),
        ("v_scale", Scale),
        ("params", c_void_p),
        ("plan", c_void_p),
        ("partial_o", c_void_p),
        ("partial_md", c_void_p),
        ("keys_ahead", c_void_p),
        ("index", IndexView),
        ("device_index", c_void_p),
        ("device", c_int32),
        ("spare_rows", c_int32),
        ("num_workers", c_int32),
        ("merge_pass", c_int32),
    )
