"""The dense float64 oracle that every kernel is held to: plain numpy, request by request, no kernel code.

A reference class has a method a functor of its variant, vectorised over float64 arrays: row functors
`(p, x [..., head_dim], site) -> x`, `logits_transform(p, x, site) -> x`, `logits_mask(p, site) -> bool`,
`kv_range(p, site) -> [(lo, hi), ...]`, `row_init(p, site) -> (m, d)`. `p` holds the parameters' values by name (numpy
arrays for tensors), `site` the fields of `attnloom::Site` as int64 arrays that broadcast to the functor's shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
from attrs import frozen

from attnloom.errors import PluginError
from attnloom.resolve import resolve_code


def attention(
    q, k_cache, v_cache, index, composition, bound_params, *, sm_scale: float, k_scale=None, v_scale=None
) -> tuple[np.ndarray, np.ndarray]:
    """Attention of a batch in float64.

    Args:
        q: [tokens, qo_heads, head_dim], torch or numpy, any float dtype.
        k_cache, v_cache: [pages, page_size, kv_heads, head_dim] and [..., head_dim_v], any float dtype, float8 too.
        index: a `ComposedIndex`, or anything whose `to_dense()` tells visible pairs, slots and positions.
        composition: a `Composition`; `bound_params` its parameters.
        sm_scale: factor of `q . k`.
        k_scale, v_scale: a number or [kv_heads], factors of the stored keys and values.

    Returns:
        `(O [tokens, qo_heads, head_dim_v], LSE [tokens, qo_heads])`, float64; LSE is the natural log. A row that sees
        nothing is 0 and -inf. Without softmax LSE is NaN.
    """
    q = _float64(q)
    num_kv_heads = k_cache.shape[2]
    group = q.shape[1] // num_kv_heads
    chain = _Chain(composition, bound_params)
    out = np.zeros((*q.shape[:2], v_cache.shape[3]))
    lse = np.full(q.shape[:2], -np.inf)
    per_head = any(getattr(level, "per_head", False) for level in getattr(index, "levels", ()))
    with np.errstate(all="ignore"):
        for kv_head in range(num_kv_heads):
            dense = index.to_dense(kv_head) if per_head else index.to_dense()
            for block in _blocks(index, dense):
                site = block.site(kv_head)
                k = chain.rows("key_transform", block.load(k_cache, kv_head, k_scale), block.key_site(kv_head))
                v = chain.rows("value_transform", block.load(v_cache, kv_head, v_scale), block.key_site(kv_head))
                for qo_head in range(kv_head * group, (kv_head + 1) * group):
                    site.qo_head = np.array(qo_head)
                    rows = q[block.tokens, qo_head]
                    out[block.tokens, qo_head], lse[block.tokens, qo_head] = _head(
                        chain, rows, k, v, block, site, sm_scale
                    )
    return out, lse


@frozen
class _Block:
    """Query tokens of one request that find the same keys in the same slots: `n` tokens, `K` keys."""

    request: int
    tokens: np.ndarray
    q_index: np.ndarray
    q_pos: np.ndarray
    visible: np.ndarray
    slot: np.ndarray
    kv_pos: np.ndarray
    qo_len: int
    kv_len: int

    def load(self, cache, kv_head: int, scale) -> np.ndarray:
        """The keys' rows of the cache, float64 [K, dim]; 0 where there is no slot."""
        page_size = cache.shape[1]
        used = self.slot >= 0
        out = np.zeros((len(self.slot), cache.shape[3]))
        out[used] = _float64(cache[self.slot[used] // page_size, self.slot[used] % page_size, kv_head])
        if scale is not None:
            scale = _float64(scale).reshape(-1)
            out *= scale[kv_head if len(scale) > 1 else 0]
        return out

    def site(self, kv_head: int) -> SimpleNamespace:
        """The site of every pair; fields broadcast to [n, K]."""
        return self._site(
            kv_head,
            q_index=self.q_index[:, None],
            q_pos=self.q_pos[:, None],
            kv_index=np.arange(self.kv_len)[None],
            kv_pos=self.kv_pos[None],
        )

    def row_site(self, site: SimpleNamespace) -> SimpleNamespace:
        """The site of every query row; fields broadcast to [n]."""
        unknown = np.array(-1)
        fields = {**vars(site), "q_index": self.q_index, "q_pos": self.q_pos, "kv_index": unknown, "kv_pos": unknown}
        return SimpleNamespace(**fields)

    def key_site(self, kv_head: int) -> SimpleNamespace:
        """The site of every key; fields broadcast to [K]."""
        return self._site(
            kv_head, q_index=np.array(-1), q_pos=np.array(0), kv_index=np.arange(self.kv_len), kv_pos=self.kv_pos
        )

    def _site(self, kv_head: int, **fields) -> SimpleNamespace:
        return SimpleNamespace(
            request=np.array(self.request),
            qo_head=np.array(-1),
            kv_head=np.array(kv_head),
            qo_len=np.array(self.qo_len),
            kv_len=np.array(self.kv_len),
            **fields,
        )


def _blocks(index, dense) -> Iterator[_Block]:
    for request, kv_len in enumerate(np.asarray(index.kv_len, np.int64)):
        begin, end = int(index.qo_indptr[request]), int(index.qo_indptr[request + 1])
        slot, pos = dense.slot[begin:end, :kv_len], dense.kv_pos[begin:end, :kv_len].astype(np.int64)
        covered = slot >= 0
        if index.q_pos is None:
            q_pos = kv_len - (end - begin) + np.arange(end - begin)
        else:
            q_pos = np.asarray(index.q_pos[begin:end], np.int64)
        shared = _agreed(slot, covered) and _agreed(pos, covered)
        for part in [np.arange(end - begin)] if shared else np.arange(end - begin)[:, None]:
            if len(part):
                yield _Block(
                    request=request,
                    tokens=begin + part,
                    q_index=part,
                    q_pos=q_pos[part],
                    visible=dense.visible[begin:end, :kv_len][part],
                    slot=np.where(covered[part], slot[part], -1).max(axis=0),
                    kv_pos=np.where(covered[part], pos[part], np.iinfo(np.int32).min).max(axis=0),
                    qo_len=end - begin,
                    kv_len=int(kv_len),
                )


def _agreed(values: np.ndarray, covered: np.ndarray) -> bool:
    """Whether all tokens that a key is given to are given one value for it."""
    if not len(values):
        return True
    top = np.where(covered, values, np.iinfo(np.int64).min).max(axis=0)
    return bool(((values == top) | ~covered).all())


def reference_of(variant):
    """The float64 functors of a variant. Their attribute `functors`, where they have one, says what they define."""
    return resolve_code(variant.reference)()


def functors_of(composition, bound_params) -> dict[str, list]:
    """`{functor: [(reference method, its parameters), ...]}` in the order of the chain.

    Raises:
        PluginError: for a reference without a functor that its descriptor declares.
    """
    found: dict[str, list] = {}
    for member in composition.members:
        variant, reference = member.variant, reference_of(member.variant)
        for functor in getattr(reference, "functors", variant.functors):
            if not hasattr(reference, functor):
                raise PluginError(
                    f"variant {variant.name!r}: its reference {variant.reference!r} has no {functor}, which its "
                    "descriptor declares"
                )
            found.setdefault(functor, []).append((getattr(reference, functor), bound_params.namespace(member.alias)))
    return found


def ranges_of(kv_range, p, site) -> Sequence[tuple]:
    """What a reference's `kv_range` returns. Raises `PluginError` unless it is a list of pairs."""
    found = kv_range(p, site)
    if isinstance(found, (list, tuple)) and all(isinstance(one, (list, tuple)) and len(one) == 2 for one in found):
        return found
    name = getattr(kv_range, "__qualname__", "kv_range")
    raise PluginError(f"the reference {name} must return a list of (lo, hi), one a range, got {found!r:.80}")


class _Chain:
    """The members' reference functors, by name, each with its parameters."""

    def __init__(self, composition, bound_params):
        self.use_softmax = composition.use_softmax
        self._functors = functors_of(composition, bound_params)

    def rows(self, functor: str, x: np.ndarray, site) -> np.ndarray:
        """The row transforms called `functor`, one after the other."""
        for transform, p in self._functors.get(functor, ()):
            x = transform(p, x, site)
        return x

    def logits(self, x: np.ndarray, site) -> np.ndarray:
        """The logit transforms, one after the other."""
        return self.rows("logits_transform", x, site)

    def keeps(self, visible: np.ndarray, row_site, site) -> np.ndarray:
        """`visible` where every range and every mask agrees."""
        for kv_range, p in self._functors.get("kv_range", ()):
            inside = np.zeros_like(visible)
            for lo, hi in ranges_of(kv_range, p, row_site):
                lo, hi = np.asarray(lo)[..., None], np.asarray(hi)[..., None]
                inside |= (lo <= site.kv_pos) & (site.kv_pos < hi)
            visible = visible & inside
        for mask, p in self._functors.get("logits_mask", ()):
            visible = visible & mask(p, site)
        return visible

    def row_init(self, rows: int, site) -> tuple[np.ndarray, np.ndarray]:
        """What joins each row's softmax: `(m, d)`, together `d * exp(m)`."""
        inits = [row_init(p, site) for row_init, p in self._functors.get("row_init", ())]
        m = np.max([np.full(rows, -np.inf), *(np.broadcast_to(one[0], rows) for one in inits)], axis=0)
        d = np.zeros(rows)
        for one_m, one_d in inits:
            d += np.where(np.isneginf(one_m), 0.0, one_d * np.exp(one_m - m))
        return m, d


def _head(chain: _Chain, q, k, v, block: _Block, site, sm_scale: float) -> tuple[np.ndarray, np.ndarray]:
    """`(O [n, head_dim_v], LSE [n])` of one query head."""
    row_site = block.row_site(site)
    logits = chain.logits(sm_scale * (chain.rows("query_transform", q, row_site) @ k.T), site)
    visible = chain.keeps(block.visible, row_site, site)
    if chain.use_softmax:
        logits = np.where(visible, logits, -np.inf)
        init_m, init_d = chain.row_init(len(q), row_site)
        m = np.maximum(logits.max(axis=1, initial=-np.inf), init_m)
        weights = np.where(visible & ~np.isneginf(logits), np.exp(logits - m[:, None]), 0.0)
        total = weights.sum(axis=1) + np.where(np.isneginf(init_m), 0.0, init_d * np.exp(init_m - m))
        lse = np.where(total == 0, -np.inf, m + np.log(total))
        weights = np.where(total[:, None] == 0, 0.0, weights / total[:, None])
    else:
        weights, lse = np.where(visible, logits, 0.0), np.full(len(q), np.nan)
    return chain.rows("output_transform", _weighted(weights, visible, v), row_site), lse


def _weighted(weights, visible, v) -> np.ndarray:
    """`weights @ v`, in which a hidden key is absent whatever its value holds."""
    finite = np.isfinite(v)
    out = weights @ np.where(finite, v, 0.0)
    return np.where(visible.astype(np.float64) @ ~finite > 0, np.nan, out)


def _float64(x) -> np.ndarray:
    if hasattr(x, "detach"):
        return x.detach().cpu().double().numpy()
    return np.asarray(x, np.float64)
