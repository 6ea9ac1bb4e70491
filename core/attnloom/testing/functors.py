"""Run a composition's compiled functors one by one, and hold them to their float64 references.

For the tests of variant plugins:

    from attnloom.testing.functors import check_against_reference

    def test_soft_cap():
        check_against_reference(["soft_cap"], {"soft_cap.cap": 30.0})
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
from attrs import frozen

from attnloom.compose import Composition, compose
from attnloom.reference import functors_of, ranges_of

SITE_FIELDS = ("request", "qo_head", "kv_head", "q_index", "kv_index", "q_pos", "kv_pos", "qo_len", "kv_len")
ROW_FUNCTORS = ("query_transform", "key_transform", "value_transform", "output_transform")

_HEAD = """
#define ATTNLOOM_EXPORT extern "C" __attribute__((visibility("default"), used))
#define ATTNLOOM_ROWS(functor, name, D)                                                                  \\
  ATTNLOOM_EXPORT void name(const Params* p, float* x, int64_t n, const Site* sites) {                   \\
    for (int64_t i = 0; i < n; i++) {                                                                    \\
      attnloom::Row<attnloom::HostMap<D>> row{x + i * D};                                                \\
      Variant::functor(*p, row, at(sites, i));                                                           \\
    }                                                                                                    \\
  }
namespace {
using attnloom::Site;
Site at(const Site* sites, int64_t i) { return sites[i]; }
Site of_no_key(Site site) {
  site.kv_index = site.kv_pos = -1;
  return site;
}
}
"""

_EXPORTS = """
namespace chain_@ {
using Params = attnloom::generated_@::Params;
using Variant = attnloom::generated_@::Variant;
ATTNLOOM_ROWS(query_transform, query_transform_@, HEAD_DIM)
ATTNLOOM_ROWS(key_transform, key_transform_@, HEAD_DIM)
ATTNLOOM_ROWS(value_transform, value_transform_@, HEAD_DIM_V)
ATTNLOOM_ROWS(output_transform, output_transform_@, HEAD_DIM_V)

ATTNLOOM_EXPORT void logits_transform_@(const Params* p, float* x, int64_t n, const Site* sites) {
  _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {
    const Site& s = sites[i];
    const Site site{s.request, s.qo_head, s.kv_head, s.q_index, s.kv_index,
                    s.q_pos, s.kv_pos, s.qo_len, s.kv_len, s.distance};
    x[i] = Variant::logits_transform(*p, x[i], site);
  }
}
ATTNLOOM_EXPORT void line_@(const Params* p, attnloom::Line* lines, int64_t n, const Site* sites) {
  if constexpr (Variant::linear_in_distance)
    for (int64_t i = 0; i < n; i++) lines[i] = Variant::line(*p, of_no_key(at(sites, i)));
}
ATTNLOOM_EXPORT void curve_@(const Params* p, attnloom::Curve* curves, int64_t n, const Site* sites) {
  if constexpr (Variant::may_curve)
    for (int64_t i = 0; i < n; i++) curves[i] = Variant::curve(*p, of_no_key(at(sites, i)));
}
ATTNLOOM_EXPORT void logits_mask_@(const Params* p, uint8_t* keep, int64_t n, const Site* sites) {
  for (int64_t i = 0; i < n; i++) keep[i] = Variant::logits_mask(*p, at(sites, i));
}
ATTNLOOM_EXPORT void kv_range_@(const Params* p, int32_t* bounds, int32_t* counts, int64_t n, const Site* sites) {
  for (int64_t i = 0; i < n; i++) {
    const auto set = Variant::kv_range(*p, at(sites, i));
    counts[i] = set.count;
    for (int r = 0; r < set.count; r++) {
      bounds[2 * (i * Variant::max_ranges + r)] = set.ranges[r].lo;
      bounds[2 * (i * Variant::max_ranges + r) + 1] = set.ranges[r].hi;
    }
  }
}
ATTNLOOM_EXPORT void row_init_@(const Params* p, float* md, int64_t n, const Site* sites) {
  for (int64_t i = 0; i < n; i++) {
    const auto init = Variant::row_init(*p, at(sites, i));
    md[2 * i] = init.m;
    md[2 * i + 1] = init.d;
  }
}
ATTNLOOM_EXPORT int32_t fact_@(int32_t which) {
  const int32_t facts[] = {Variant::max_ranges, Variant::range_monotone, Variant::range_head_uniform,
                           Variant::use_softmax, Variant::has_kv_range, Variant::has_logits_mask,
                           Variant::linear_in_distance, Variant::may_curve};
  return facts[which];
}
}
"""


_FACTS = (
    "max_ranges", "range_monotone", "range_head_uniform", "use_softmax", "has_kv_range", "has_logits_mask",
    "linear_in_distance", "may_curve",
)  # fmt: skip


@frozen(kw_only=True)
class FunctorSpec:
    """The part of an `AttentionSpec` that functors and their parameters are sized by."""

    num_qo_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    head_dim_v: int = 64
    dtype: str = "float32"
    kv_dtype: str = "float32"
    sm_scale: float = 0.125
    params: Any = None


def compile_functors(compositions, params, *, debug: bool = False, flags: tuple[str, ...] = ()) -> list:
    """The `CompiledFunctors` of several compositions, from one compile.

    Args:
        params: the parameters of each, keyed `"alias.parameter"`.
        flags: further compiler flags.
    """
    library = _build(compositions, debug, flags)
    pairs = enumerate(zip(compositions, params, strict=True))
    return [CompiledFunctors(one, own, library=library, number=number) for number, (one, own) in pairs]


def _build(compositions, debug: bool, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    from attnloom import jit

    unit = jit.CompileUnit(
        name="functors",
        sources={"functors.cc": "".join(_texts(compositions))},
        include_dirs=list(dict.fromkeys(folder for one in compositions for folder in one.include_dirs)),
        owners={prefix: label for one in compositions for prefix, label in one.owners.items()},
        flags=flags,
        kind="test",
    )
    return ctypes.CDLL(str(jit.build(unit, jit.host_toolchain(debug=debug)).path))


def _texts(compositions):
    for number, composition in enumerate(compositions):
        text = composition.source
        for namespace in ("attnloom::generated", "attnloom::mods::variants"):
            text = text.replace(namespace, f"{namespace}_{number}")
        yield text
    yield _HEAD
    for number, composition in enumerate(compositions):
        dims = {"HEAD_DIM_V": composition.spec.head_dim_v, "HEAD_DIM": composition.spec.head_dim, "@": number}
        text = _EXPORTS
        for word, value in dims.items():
            text = text.replace(word, str(value))
        yield text


class CompiledFunctors:
    """A composition's functors as callables over arrays of sites (`random_sites`).

    Attributes:
        composition: what was compiled.
        params: its `BoundParams`; may be replaced by others that `composition.resolve` made.
        facts: `max_ranges`, `range_monotone`, `range_head_uniform`, `use_softmax`, ... by name.
    """

    def __init__(
        self,
        composition: Composition,
        params: dict[str, Any] | None = None,
        *,
        debug: bool = False,
        library: ctypes.CDLL | None = None,
        number: int = 0,
    ):
        """Compile `composition`, or take it from a `library` that `compile_functors` made."""
        self.composition = composition
        self.params = composition.resolve(params)
        self._library = _build([composition], debug) if library is None else library
        self._number = number
        self.facts = {name: self._function("fact")(i) for i, name in enumerate(_FACTS)}

    def _function(self, name: str):
        return getattr(self._library, f"{name}_{self._number}")

    def rows(self, functor: str, x: np.ndarray, sites: SimpleNamespace) -> np.ndarray:
        """A row functor over `x` float32 [n, dim]."""
        return self._call(functor, np.array(x, np.float32, order="C"), sites)

    def logits(self, x: np.ndarray, sites: SimpleNamespace) -> np.ndarray:
        """`logits_transform` over `x` float32 [n]."""
        return self._call("logits_transform", np.array(x, np.float32), sites)

    def lines(self, sites: SimpleNamespace) -> np.ndarray:
        """What is added to logits of each site where that is `linear_in_distance`: offset and slope, float32 [n, 2]."""
        return self._call("line", np.zeros((len(sites.request), 2), np.float32), sites)

    def curves(self, sites: SimpleNamespace) -> np.ndarray:
        """What becomes of logits of each site where that `may_curve`: c3, c5, c7 and their limit, float32 [n, 4]."""
        return self._call("curve", np.zeros((len(sites.request), 4), np.float32), sites)

    def keeps(self, sites: SimpleNamespace) -> np.ndarray:
        """`logits_mask` of each site, bool [n]."""
        return self._call("logits_mask", np.zeros(len(sites.request), np.uint8), sites).astype(bool)

    def ranges(self, sites: SimpleNamespace) -> list[list[tuple[int, int]]]:
        """`kv_range` of each site: sorted disjoint intervals."""
        packed = packed_sites(sites)
        counts = np.zeros(len(packed), np.int32)
        bounds = np.zeros((len(packed), self.facts["max_ranges"], 2), np.int32)
        self._function("kv_range")(
            *map(_pointer, (self.params.struct, bounds, counts)), ctypes.c_int64(len(packed)), _pointer(packed)
        )
        return [[tuple(map(int, pair)) for pair in rows[:count]] for rows, count in zip(bounds, counts, strict=True)]

    def row_init(self, sites: SimpleNamespace) -> np.ndarray:
        """`row_init` of each site, float32 [n, 2]: m and d."""
        return self._call("row_init", np.zeros((len(sites.request), 2), np.float32), sites)

    def _call(self, name: str, out: np.ndarray, sites: SimpleNamespace) -> np.ndarray:
        packed = packed_sites(sites)
        self._function(name)(_pointer(self.params.struct), _pointer(out), ctypes.c_int64(len(packed)), _pointer(packed))
        return out


def random_sites(
    rng: np.random.Generator, n: int, spec, *, requests: int = 3, max_len: int = 200, lens=None
) -> SimpleNamespace:
    """`n` sites of pairs that can occur, as int64 arrays: positions are the default ones, shifted per request.

    Args:
        lens: `(qo_lens, kv_lens)` of the batch that the pairs are from, none 0; none given: `requests` random ones.
    """
    if lens is None:
        lens = rng.integers(1, max_len, requests), rng.integers(1, max_len, requests)
    qo_len, kv_len = (np.asarray(one, np.int64) for one in lens)
    requests = len(qo_len)
    request = rng.integers(0, requests, n)
    shift = rng.integers(-5, 5000, requests)[request]
    q_index = rng.integers(0, qo_len[request])
    kv_index = rng.integers(0, kv_len[request])
    qo_head = rng.integers(0, spec.num_qo_heads, n)
    return SimpleNamespace(
        request=request,
        qo_head=qo_head,
        kv_head=qo_head // (spec.num_qo_heads // spec.num_kv_heads),
        q_index=q_index,
        kv_index=kv_index,
        q_pos=kv_len[request] - qo_len[request] + q_index + shift,
        kv_pos=kv_index + shift,
        qo_len=qo_len[request],
        kv_len=kv_len[request],
    )


def check_against_reference(
    variants, params=None, *, spec=None, plugins=None, n: int = 500, seed: int = 0, rtol: float = 2e-6, sites=None
) -> CompiledFunctors:
    """Compile the chain of `variants` and compare every functor it has with the float64 references, on random sites.

    Args:
        rtol: bound of the error, relative to the sum of input and output magnitudes.
        sites: those to use instead of `n` random ones.

    Raises:
        AssertionError: where the two differ.
    """
    spec = spec or FunctorSpec(params=params)
    if plugins is None:
        from attnloom.plugins import PluginSet

        plugins = PluginSet.default()
    composition = compose(variants, spec=spec, plugins=plugins, params=params)
    (compiled,) = compile_functors([composition], [params])
    compare_with_reference(compiled, np.random.default_rng(seed), n=n, rtol=rtol, sites=sites)
    return compiled


def compare_with_reference(compiled: CompiledFunctors, rng, *, n: int = 500, rtol: float = 2e-6, sites=None) -> None:
    """Compare every compiled functor with the float64 references. Raises `AssertionError` where they differ."""
    sites = sites or random_sites(rng, n, compiled.composition.spec)
    for functor, chain in functors_of(compiled.composition, compiled.params).items():
        _CHECKS.get(functor, _check_rows)(functor, compiled, chain, sites, rng, rtol)


def _check_rows(functor, compiled, chain, sites, rng, rtol) -> None:
    spec = compiled.composition.spec
    dim = spec.head_dim if functor in ("query_transform", "key_transform") else spec.head_dim_v
    x = rng.standard_normal((len(sites.request), dim)).astype(np.float32)
    want = x.astype(np.float64)
    for transform, p in chain:
        want = transform(p, want, sites)
    scale = np.abs(x).max(axis=-1, keepdims=True) + np.abs(want).max(axis=-1, keepdims=True)
    _assert_near(functor, compiled.rows(functor, x, sites), want, rtol * scale)


def _check_logits(functor, compiled, chain, sites, rng, rtol) -> None:
    x = (rng.standard_normal(len(sites.request)) * 10.0 ** rng.uniform(-2, 3, len(sites.request))).astype(np.float32)
    want = x.astype(np.float64)
    for transform, p in chain:
        want = transform(p, want, sites)
    distance = sites.kv_pos - sites.q_pos
    bound = rtol * (np.abs(x) + np.abs(want) + np.abs(distance))
    _assert_near(functor, compiled.logits(x, sites), want, bound)
    if compiled.facts["linear_in_distance"]:
        offset, slope = compiled.lines(sites).astype(np.float64).T
        told = "linear_in_distance says that only numbers and multiples of site.distance are added, and these"
        _assert_near(told, x + offset + slope * distance, want, bound)
    if compiled.facts["may_curve"]:
        c3, c5, c7, limit = compiled.curves(sites).astype(np.float64).T
        square = np.where(np.abs(x) <= limit, np.float64(x) ** 2, 0)
        curved = x * (1 + square * (c3 + square * (c5 + square * c7)))
        on_curve = np.abs(x) <= limit
        _assert_near("the curve of all logits", curved[on_curve], want[on_curve], bound[on_curve])


def _check_mask(functor, compiled, chain, sites, rng, rtol) -> None:
    want = np.ones(len(sites.request), bool)
    for mask, p in chain:
        want &= mask(p, sites)
    kept = compiled.keeps(sites)
    if _lowered(compiled):
        kept &= _inside(compiled, sites)
        want &= _in_ranges(functors_of(compiled.composition, compiled.params).get("kv_range", ()), sites)
    np.testing.assert_array_equal(kept, want, err_msg=functor)


def _check_range(functor, compiled, chain, sites, rng, rtol) -> None:
    if not _lowered(compiled):
        np.testing.assert_array_equal(_inside(compiled, sites), _in_ranges(chain, sites), err_msg=functor)


def _in_ranges(chain, sites) -> np.ndarray:
    """Which sites the references' ranges leave."""
    inside = np.ones(len(sites.request), bool)
    for kv_range, p in chain:
        ranges = ranges_of(kv_range, p, sites)
        inside &= np.any([(lo <= sites.kv_pos) & (sites.kv_pos < hi) for lo, hi in ranges], axis=0)
    return inside


def _lowered(compiled) -> bool:
    """Whether a member was lowered from Python: what its mask and its range hide is told by both together."""
    return any(member.variant.text is not None for member in compiled.composition.members)


def _inside(compiled, sites) -> np.ndarray:
    ranges = compiled.ranges(sites)
    return np.array([any(lo <= pos < hi for lo, hi in own) for own, pos in zip(ranges, sites.kv_pos, strict=True)])


def _check_init(functor, compiled, chain, sites, rng, rtol) -> None:
    want = np.zeros(len(sites.request))
    for row_init, p in chain:
        m, d = row_init(p, sites)
        want += d * np.exp(m)
    got = compiled.row_init(sites).astype(np.float64)
    _assert_near(functor, got[:, 1] * np.exp(got[:, 0]), want, rtol * want * 10)


_CHECKS = {
    "logits_transform": _check_logits,
    "logits_mask": _check_mask,
    "kv_range": _check_range,
    "row_init": _check_init,
}


def _assert_near(functor: str, got, want, bound) -> None:
    wrong = ~(np.abs(got - want) <= bound)
    assert not wrong.any(), (
        f"{functor}: {wrong.sum()} of {wrong.size} values differ from the reference, first at "
        f"{np.argwhere(wrong)[0].tolist()}: {got[wrong][0]!r}, expected {want[wrong][0]!r}"
    )


def packed_sites(sites: SimpleNamespace) -> np.ndarray:
    """`sites` as an array of C++'s `Site`, one a row."""
    distance = (sites.kv_pos - sites.q_pos).astype(np.float32).view(np.int32)
    fields = [*(getattr(sites, name) for name in SITE_FIELDS), distance, np.zeros_like(distance)]
    return np.ascontiguousarray(np.stack(fields, axis=1), np.int32)


def _pointer(value) -> ctypes.c_void_p:
    return ctypes.c_void_p(value.ctypes.data if isinstance(value, np.ndarray) else ctypes.addressof(value))
