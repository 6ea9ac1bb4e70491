"""`run` as torch operators that take a wrapper's name, so that a compiled graph is one piece and sees each new plan."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from attnloom.dtypes import torch_dtype
from attnloom.errors import RunError

_wrappers: weakref.WeakValueDictionary[str, object] = weakref.WeakValueDictionary()


def register(wrapper) -> None:
    """Make `wrapper` known to the operators by its name.

    Raises:
        RunError: another living wrapper has that name.
    """
    if _wrappers.setdefault(wrapper.name, wrapper) is not wrapper:
        raise RunError(f"a wrapper named {wrapper.name!r} exists already; names are unique while a wrapper lives")


def _named(name: str):
    wrapper = _wrappers.get(name)
    if wrapper is None:
        raise RunError(f"no wrapper named {name!r} is alive; keep a reference to it while its name is in use")
    return wrapper


@torch.library.custom_op("attnloom::run", mutates_args=())
def run(q: Tensor, k: Tensor, v: Tensor, wrapper: str, k_scale: Tensor | None, v_scale: Tensor | None) -> Tensor:
    """`out` of the plan in force of the wrapper named `wrapper`."""
    return _named(wrapper).run(q, (k, v), k_scale=k_scale, v_scale=v_scale)


@torch.library.custom_op("attnloom::run_with_lse", mutates_args=())
def run_with_lse(
    q: Tensor, k: Tensor, v: Tensor, wrapper: str, k_scale: Tensor | None, v_scale: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`(out, lse)` of the plan in force of the wrapper named `wrapper`."""
    return _named(wrapper).run(q, (k, v), return_lse=True, k_scale=k_scale, v_scale=v_scale)


@torch.library.custom_op("attnloom::run_into", mutates_args=("out",))
def run_into(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, wrapper: str, k_scale: Tensor | None, v_scale: Tensor | None
) -> None:
    """Writes `out` of the plan in force of the wrapper named `wrapper`."""
    _named(wrapper).run(q, (k, v), out=out, k_scale=k_scale, v_scale=v_scale)


@run.register_fake
def _(q, k, v, wrapper, k_scale, v_scale):
    return _fake_out(q, wrapper)


@run_with_lse.register_fake
def _(q, k, v, wrapper, k_scale, v_scale):
    return _fake_out(q, wrapper), q.new_empty(q.shape[:2], dtype=torch.float32)


@run_into.register_fake
def _(q, k, v, out, wrapper, k_scale, v_scale):
    return None


def _fake_out(q, name: str):
    spec = _named(name).spec
    return q.new_empty((q.shape[0], spec.num_qo_heads, spec.head_dim_v), dtype=torch_dtype(spec.out_dtype))


def call(wrapper, q, k, v, out, lse, return_lse, params, k_scale, v_scale):
    """What `AttentionWrapper.run` becomes while torch traces a graph.

    Raises:
        RunError: `lse=`, or `params=`, which a graph would freeze: give them to `plan`.
    """
    if params is not None:
        raise RunError("a compiled graph takes no params= in run: give them to plan(index, params=...)")
    if lse is not None or (out is not None and return_lse):
        raise RunError("a compiled graph takes no lse=, nor out= together with return_lse")
    k_scale, v_scale = _as_tensor(k_scale, wrapper.device), _as_tensor(v_scale, wrapper.device)
    if return_lse:
        return torch.ops.attnloom.run_with_lse(q, k, v, wrapper.name, k_scale, v_scale)
    if out is not None:
        torch.ops.attnloom.run_into(q, k, v, out, wrapper.name, k_scale, v_scale)
        return out
    return torch.ops.attnloom.run(q, k, v, wrapper.name, k_scale, v_scale)


def _as_tensor(scale, device):
    if scale is None or isinstance(scale, Tensor):
        return scale
    return torch.full((1,), scale, dtype=torch.float32, device=device)
