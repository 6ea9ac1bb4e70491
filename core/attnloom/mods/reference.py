"""A variant made of mods in float64: the Python functions themselves, over arrays of sites."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch

from attnloom.mods.descriptor import POSITIONAL, SITE_ARGUMENTS, extra_arguments
from attnloom.mods.trace import Watch

_SITE_FIELDS = {"b": "request", "h": "qo_head", "q_idx": "q_pos", "kv_idx": "kv_pos"}


class ModsReference:
    """The functors that the functions are, whatever they were lowered to.

    Args:
        functions: `"score_mod"` and `"mask_mod"`, those that are given.
        params: names of declared parameters.
        captured: `{id(tensor): parameter}` of the tensors they close over.
    """

    def __init__(self, functions: dict[str, Callable], params: tuple[str, ...], captured: dict[int, str]):
        self._functions, self._params, self._captured = functions, params, captured
        mods = {"score_mod": "logits_transform", "mask_mod": "logits_mask"}
        self.functors = frozenset(mods[kind] for kind in functions)

    def logits_transform(self, p, x, site) -> np.ndarray:
        """`score_mod` of every score."""
        return self._evaluate("score_mod", p, site, score=np.asarray(x, np.float64)).astype(np.float64)

    def logits_mask(self, p, site) -> np.ndarray:
        """`mask_mod` of every pair."""
        return self._evaluate("mask_mod", p, site).astype(bool)

    def visible(self, p, site, kv_len: int) -> list[tuple[int, int]]:
        """The intervals of `kv_pos` in `[0, kv_len)` that the mask keeps for one query row."""
        pos = np.arange(kv_len)
        kept = self.logits_mask(p, SimpleNamespace(**{**vars(site), "kv_pos": pos, "kv_index": pos}))
        edges = np.flatnonzero(np.diff(np.concatenate(([False], kept, [False])).astype(np.int8)))
        return [(int(lo), int(hi)) for lo, hi in edges.reshape(-1, 2)]

    def _evaluate(self, kind: str, p, site: SimpleNamespace, **score) -> np.ndarray:
        function = self._functions[kind]
        extra = extra_arguments(kind, function, self._params)
        names = [*POSITIONAL[kind], *extra]
        own = {name: getattr(p, name) for name in extra if name in self._params}
        fields = {name: score.get(name, _field(site, name)) for name in names if name not in own}
        shape = np.broadcast_shapes(*(np.shape(value) for value in fields.values()))
        flat = [torch.from_numpy(np.broadcast_to(value, shape).reshape(-1).copy()) for value in fields.values()]
        flat = [value if value.is_floating_point() else value.to(torch.int32) for value in flat]
        constants = {name: _tensor(value) for name, value in own.items()}

        def one(*values):
            given = dict(zip(fields, values, strict=True))
            positional = [given[name] for name in POSITIONAL[kind]]
            named = {name: given[name] if name in given else constants[name] for name in extra}
            return torch.as_tensor(function(*positional, **named))

        replaced = {key: _tensor(getattr(p, name)) for key, name in self._captured.items()}
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.no_grad(), Watch(replaced=replaced):
                out = torch.vmap(one)(*flat) if flat[0].numel() else torch.zeros(0)
        finally:
            torch.set_default_dtype(default)
        return out.numpy().reshape(shape)


def _field(site: SimpleNamespace, name: str):
    if name == "score":
        return 0.0
    assert name in _SITE_FIELDS or name in SITE_ARGUMENTS
    return np.asarray(getattr(site, _SITE_FIELDS.get(name, name)))


def _tensor(value) -> torch.Tensor:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else torch.tensor(value)
