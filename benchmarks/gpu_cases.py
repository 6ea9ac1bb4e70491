"""The batches that GPU kernels are compared on: lengths, heads, pages, variants."""

from __future__ import annotations

import numpy as np
from attrs import field, frozen

HEAD_DIM = 128
HEADS = {"mha": (32, 32), "gqa4": (32, 8), "gqa8": (64, 8)}


@frozen(kw_only=True)
class Case:
    """One batch.

    Attributes:
        name, group: for tables.
        qo_lens, kv_lens: of each request.
        heads: `(query heads, kv heads)`.
        page_size: slots of a page; none: ragged tensors.
        variants, params: as in `AttentionSpec`.
        kv_dtype: of the cache, where it is not bfloat16.
        shared: keys at the front of every request that lie in pages they share.
        peers: names of `gpu_peers.PEERS` to run beside attnloom.
    """

    name: str
    group: str
    qo_lens: tuple[int, ...] = field(converter=lambda values: tuple(int(value) for value in values))
    kv_lens: tuple[int, ...] = field(converter=lambda values: tuple(int(value) for value in values))
    heads: tuple[int, int]
    page_size: int | None = 16
    variants: tuple[str, ...] = ("causal",)
    params: dict = field(factory=dict)
    kv_dtype: str = "bfloat16"
    shared: int = 0
    peers: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of K and V, each read once."""
        size = 1 if self.kv_dtype.startswith("float8") else 2
        return 2 * size * HEAD_DIM * self.heads[1] * sum(self.kv_lens)

    @property
    def flops(self) -> int:
        """Floating-point operations on visible pairs."""
        window = self.params.get("sliding_window.left", -1)
        pairs = sum(_pairs(qo, kv, window) for qo, kv in zip(self.qo_lens, self.kv_lens, strict=True))
        return 4 * HEAD_DIM * self.heads[0] * pairs


def _pairs(qo: int, kv: int, window: int) -> int:
    seen = np.arange(kv - qo + 1, kv + 1, dtype=np.int64)
    return int(seen.sum() if window < 0 else np.minimum(seen, window + 1).sum())


def lengths(kind: str, requests: int, average: int) -> np.ndarray:
    """Lengths of a batch: equal; uniform in the upper half; or zipf (`1 / rank`) with the same total, shuffled."""
    rng = np.random.default_rng(requests)
    if kind == "const":
        return np.full(requests, average)
    if kind == "uniform":
        return rng.integers(average // 2, average, requests)
    weights = 1 / np.arange(1, requests + 1)
    return rng.permutation(np.maximum(1, np.round(weights / weights.sum() * requests * average)).astype(int))


def decode() -> list[Case]:
    """One query token a request."""
    cases = []
    table = [
        (16, 1024, kind, name, page)
        for kind in ("const", "uniform", "zipf")
        for name, page in (("mha", 16), ("gqa4", 16), ("gqa4", 1), ("gqa8", 16), ("gqa8", 1))
    ]
    table += [(64, 4096, kind, name, 16) for kind in ("const", "uniform", "zipf") for name in ("gqa4", "gqa8")]
    table += [(64, 4096, "const", "mha", 16), (64, 4096, "const", "gqa4", 1)]
    table += [(1, 32768, "const", name, 16) for name in HEADS]
    for requests, average, kind, name, page in table:
        cases.append(
            Case(
                name=f"bs{requests} avg{average} {kind} {name} p{page}",
                group="decode",
                qo_lens=[1] * requests,
                kv_lens=lengths(kind, requests, average),
                heads=HEADS[name],
                page_size=page,
                peers=("flashinfer-tc", "flashinfer-cudacore"),
            )
        )
    return cases


def shared_prefix() -> list[Case]:
    """A prefix that all requests share, 128 keys of their own."""
    return [
        Case(
            name=f"prefix{prefix} n{requests}",
            group="prefix",
            qo_lens=[1] * requests,
            kv_lens=[prefix + 128] * requests,
            heads=HEADS["gqa4"],
            shared=prefix,
            peers=("flashinfer-cascade", "flashinfer-tc"),
        )
        for prefix in (1024, 8192, 32768)
        for requests in (16, 64)
    ]


DENSE = ((1, 16384), (2, 8192), (4, 4096), (8, 2048), (16, 1024), (32, 512))


def prefill() -> list[Case]:
    """Causal, all tokens of each request: ragged tensors of equal lengths, then pages."""
    ragged = ("flashinfer-fa2", "flashinfer-fa3", "sdpa-flash", "sdpa-cudnn", "flex")
    cases = [
        Case(
            name=f"causal b{batch} s{length}",
            group="prefill",
            qo_lens=[length] * batch,
            kv_lens=[length] * batch,
            heads=HEADS["mha"],
            page_size=None,
            peers=ragged,
        )
        for batch, length in DENSE
    ]
    for kind in ("const", "uniform", "zipf"):
        lens = lengths(kind, 16, 1024)
        cases += [
            Case(
                name=f"paged {kind} {name} p{page}",
                group="prefill",
                qo_lens=lens,
                kv_lens=lens,
                heads=HEADS[name],
                page_size=page,
                peers=("flashinfer-fa2", "flashinfer-fa3"),
            )
            for name, page in (("mha", 16), ("gqa4", 16), ("gqa4", 1))
        ]
    return cases


CHAINS = {
    "soft_cap": (("causal", "soft_cap"), {"soft_cap.cap": 50.0}),
    "alibi": (("causal", "alibi"), {}),
    "window1024": (("causal", "sliding_window"), {"sliding_window.left": 1024}),
    "sinks": (("causal", "sinks"), {}),
    "rope": (("rope", "causal"), {}),
}


def variants() -> list[Case]:
    """Chains of variants in prefill and in decode."""
    cases = []
    for name, (chain, params) in CHAINS.items():
        peers = ("flashinfer-fa2",) if name in ("soft_cap", "alibi", "window1024") else ()
        for batch, length in ((1, 16384), (8, 2048)):
            cases.append(
                Case(
                    name=f"{name} b{batch} s{length}",
                    group="variants",
                    qo_lens=[length] * batch,
                    kv_lens=[length] * batch,
                    heads=HEADS["mha"],
                    page_size=None,
                    variants=chain,
                    params=params,
                    peers=(*peers, *(("flex",) if name in ("soft_cap", "alibi") and batch == 8 else ())),
                )
            )
        cases.append(
            Case(
                name=f"{name} decode bs64 avg4096 gqa4",
                group="variants",
                qo_lens=[1] * 64,
                kv_lens=[4096] * 64,
                heads=HEADS["gqa4"],
                variants=chain,
                params=params,
                peers=("flashinfer-tc",) if peers else (),
            )
        )
    return cases


def narrow() -> list[Case]:
    """A cache of float8."""
    return [
        Case(
            name=f"{kv_dtype} decode bs64 avg4096 gqa4",
            group="fp8",
            qo_lens=[1] * 64,
            kv_lens=[4096] * 64,
            heads=HEADS["gqa4"],
            kv_dtype=kv_dtype,
            peers=("flashinfer-tc",),
        )
        for kv_dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    ]


def all_cases() -> list[Case]:
    """Every case, group by group."""
    return [*decode(), *shared_prefix(), *prefill(), *variants(), *narrow()]
