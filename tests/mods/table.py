"""Many lowered mods in one compiled library, and the same mods in eager torch, site by site."""

from __future__ import annotations

import ctypes
import inspect
from types import SimpleNamespace

import numpy as np
import torch
from attnloom import jit
from attnloom.compose import compose
from attnloom.mods.descriptor import POSITIONAL
from attnloom.plugins import PluginSet
from attnloom.testing.functors import FunctorSpec, packed_sites

_FUNCTIONS = """
ATTNLOOM_EXPORT void {alias}_score(const Params& p, float* x, int64_t n, const Site* sites) {{
  for (int64_t i = 0; i < n; i++) x[i] = Chain<{struct}>::score(p.{alias}, x[i], sites[i]);
}}
ATTNLOOM_EXPORT void {alias}_mask(const Params& p, uint8_t* keep, int64_t n, const Site* sites) {{
  for (int64_t i = 0; i < n; i++) keep[i] = Chain<{struct}>::mask(p.{alias}, sites[i]);
}}
ATTNLOOM_EXPORT void {alias}_range(const Params& p, int32_t* bounds, int64_t n, const Site* sites) {{
  for (int64_t i = 0; i < n; i++) Chain<{struct}>::range(p.{alias}, sites[i], bounds + 4 * i);
}}
"""

_PRELUDE = """
#define ATTNLOOM_EXPORT extern "C" __attribute__((visibility("default"), used))
namespace {
using namespace attnloom;
using Params = generated::Params;
template <class V>
struct Chain {
  template <class P>
  static float score(const P& p, float x, const Site& site) {
    if constexpr (defines_logits_transform<V>) return V{}.logits_transform(p, x, site);
    else return x;
  }
  template <class P>
  static bool mask(const P& p, const Site& site) {
    if constexpr (defines_logits_mask<V>) return V{}.logits_mask(p, site);
    else return true;
  }
  static void write(Range a, int32_t* to) { to[0] = a.lo, to[1] = a.hi, to[2] = to[3] = 0; }
  static void write(Ranges r, int32_t* to) { to[0] = r.a.lo, to[1] = r.a.hi, to[2] = r.b.lo, to[3] = r.b.hi; }
  template <class P>
  static void range(const P& p, const Site& site, int32_t* to) {
    if constexpr (defines_kv_range<V>) write(V{}.kv_range(p, site), to);
    else write(Range{kPosMin, kPosMax}, to);
  }
};
}
"""


class Table:
    """The functors of many variants, each alone, behind one compile."""

    def __init__(self, variants, params=None, spec=None):
        self.spec = spec or FunctorSpec(num_qo_heads=4, num_kv_heads=2)
        self.composition = compose(variants, spec=self.spec, plugins=PluginSet.default())
        self.members = {member.alias: member.variant for member in self.composition.members}
        functions = [_FUNCTIONS.format(alias=a, struct=v.struct) for a, v in self.members.items()]
        unit = jit.CompileUnit(
            name="mods_table",
            sources={"table.cc": self.composition.source + _PRELUDE + "".join(functions)},
            include_dirs=self.composition.include_dirs,
            flags=["-O1"],
            kind="test",
        )
        self._library = ctypes.CDLL(str(jit.build(unit, jit.host_toolchain()).path))
        self.bind(params)

    def bind(self, params=None):
        self.params = self.composition.resolve(params)

    def scores(self, alias, x, sites):
        return self._call(f"{alias}_score", np.array(x, np.float32), sites)

    def keeps(self, alias, sites):
        """What is visible: in the range, and kept by what is left of the mask."""
        return self.residual(alias, sites) & self.inside(alias, sites)

    def residual(self, alias, sites):
        return self._call(f"{alias}_mask", np.zeros(len(sites.request), np.uint8), sites).astype(bool)

    def ranges(self, alias, sites):
        return self._call(f"{alias}_range", np.zeros((len(sites.request), 4), np.int32), sites)

    def inside(self, alias, sites):
        lo_a, hi_a, lo_b, hi_b = self.ranges(alias, sites).T
        pos = sites.kv_pos
        return ((lo_a <= pos) & (pos < hi_a)) | ((lo_b <= pos) & (pos < hi_b))

    def _call(self, name, out, sites):
        packed = packed_sites(sites)
        pointers = [ctypes.c_void_p(value) for value in (self.params.address, out.ctypes.data)]
        getattr(self._library, name)(*pointers, ctypes.c_int64(len(packed)), ctypes.c_void_p(packed.ctypes.data))
        return out


def eager(kind, function, sites, params=None, score=None):
    """A mod called with 0-d tensors, once a site, as FlexAttention defines it."""
    params = params or {}
    fields = {"b": sites.request, "h": sites.qo_head, "q_idx": sites.q_pos, "kv_idx": sites.kv_pos}
    count = len(POSITIONAL[kind])
    extra = [n for n in list(inspect.signature(function).parameters)[count:] if n in params or hasattr(sites, n)]
    out = []
    for i in range(len(sites.request)):
        given = [torch.tensor(int(fields[n][i]), dtype=torch.int32) for n in POSITIONAL[kind] if n != "score"]
        if kind == "score_mod":
            given.insert(0, torch.tensor(float(score[i]), dtype=torch.float32))
        named = {
            n: params[n] if n in params else torch.tensor(int(getattr(sites, n)[i]), dtype=torch.int32) for n in extra
        }
        out.append(function(*given, **named))
    if kind == "mask_mod":
        return np.array([bool(value) for value in out])
    return np.array([torch.as_tensor(value).to(torch.float32).item() for value in out], np.float32)


def grid(qo_len, kv_len, *, requests=1, heads=(0,), shift=0):
    """Every pair of some requests, as sites; positions are bottom-right aligned, then shifted."""
    request, head, q, kv = (
        axis.reshape(-1)
        for axis in np.meshgrid(
            np.arange(requests), np.array(heads), np.arange(qo_len), np.arange(kv_len), indexing="ij"
        )
    )
    full = np.full_like(q, 1)
    return SimpleNamespace(
        request=request, qo_head=head, kv_head=head // 2, q_index=q, kv_index=kv,
        q_pos=kv_len - qo_len + q + shift, kv_pos=kv + shift, qo_len=full * qo_len, kv_len=full * kv_len,
    )  # fmt: skip


def pick(sites, rng, n):
    """Some of the sites."""
    chosen = rng.choice(len(sites.request), min(n, len(sites.request)), replace=False)
    return SimpleNamespace(**{name: value[chosen] for name, value in vars(sites).items()})
