"""attnloom and its peers on one batch: each gives a function that runs it, and where its output lies."""

from __future__ import annotations

import numpy as np
import torch
from gpu_cases import HEAD_DIM, Case

WORKSPACE = 512 << 20


class UnavailableError(Exception):
    """Why a peer does not run a case."""


class Batch:
    """The tensors of a case on the device, shared by all that run it."""

    def __init__(self, case: Case):
        generator = torch.Generator(device="cuda").manual_seed(7)
        self.case = case
        hq, hk = case.heads
        self.qo_indptr = np.concatenate([[0], np.cumsum(case.qo_lens)]).astype(np.int32)
        self.kv_indptr = np.concatenate([[0], np.cumsum(case.kv_lens)]).astype(np.int32)

        def rand(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)

        self.q = rand(int(self.qo_indptr[-1]), hq, HEAD_DIM)
        if case.page_size is None:
            self.tables = None
            shape = (int(self.kv_indptr[-1]), hk, HEAD_DIM)
        else:
            self.tables = self._tables()
            shape = (self.pages, case.page_size, hk, HEAD_DIM)
        self.k, self.v = (rand(*shape).to(getattr(torch, case.kv_dtype)) for _ in range(2))
        sinks = {"sinks.sinks": rand(hq).float()} if "sinks" in case.variants else {}
        self.params = {**case.params, **sinks}

    def _tables(self) -> list[np.ndarray]:
        case, rng = self.case, np.random.default_rng(3)
        shared = case.shared // case.page_size
        counts = [-(-kv // case.page_size) - shared for kv in case.kv_lens]
        self.pages = shared + sum(counts)
        pages = rng.permutation(self.pages).astype(np.int32)
        own = np.split(pages[shared:], np.cumsum(counts)[:-1])
        return [np.concatenate([pages[:shared], part]) for part in own]

    def padded(self) -> torch.Tensor:
        """The page tables as one padded tensor on the device."""
        width = max(len(table) for table in self.tables)
        return torch.from_numpy(np.stack([np.pad(table, (0, width - len(table))) for table in self.tables])).cuda()

    def expected(self, request: int, rows: int) -> torch.Tensor:
        """Float32 attention of the last `rows` query tokens of a request, `[rows, query heads, head_dim]`."""
        case = self.case
        kv, scale = case.kv_lens[request], HEAD_DIM**-0.5
        k, v = (self._keys(cache, request).float() for cache in (self.k, self.v))
        q = self.q[self.qo_indptr[request + 1] - rows : self.qo_indptr[request + 1]].float()
        kv_pos = torch.arange(kv, device="cuda")
        q_pos = torch.arange(kv - rows, kv, device="cuda")
        if "rope" in case.variants:
            q, k = _rotate(q, q_pos), _rotate(k, kv_pos)
        group = case.heads[0] // case.heads[1]
        logits = torch.einsum("thd,khd->htk", q, k.repeat_interleave(group, 1)) * scale
        distance = (kv_pos[None] - q_pos[:, None]).float()
        if "soft_cap" in case.variants:
            logits = 50.0 * torch.tanh(logits / 50.0)
        if "alibi" in case.variants:
            slopes = 2.0 ** (-8.0 * torch.arange(1, case.heads[0] + 1, device="cuda") / case.heads[0])
            logits = logits + slopes[:, None, None] * distance
        hidden = distance > 0
        if "sliding_window.left" in case.params:
            hidden |= distance < -case.params["sliding_window.left"]
        logits = logits.masked_fill(hidden, float("-inf"))
        if "sinks" in case.variants:
            sinks = self.params["sinks.sinks"][:, None, None].expand(-1, rows, 1)
            weights = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        else:
            weights = logits.softmax(-1)
        return torch.einsum("htk,khd->thd", weights, v.repeat_interleave(group, 1))

    def _keys(self, cache, request: int) -> torch.Tensor:
        if self.tables is None:
            return cache[self.kv_indptr[request] : self.kv_indptr[request + 1]]
        table = torch.from_numpy(self.tables[request]).cuda().long()
        raw = cache.view(torch.uint8) if cache.element_size() == 1 else cache
        return raw[table].view(cache.dtype).flatten(0, 1)[: self.case.kv_lens[request]]


def _rotate(x, positions, theta: float = 10000.0):
    half = x.shape[-1] // 2
    angles = positions[:, None].double() * theta ** (-torch.arange(half, device="cuda").double() / half)
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attnloom_(batch: Batch):
    """attnloom: the radix tree where a prefix is shared, else the page table, or dense keys."""
    import attnloom

    case = batch.case
    spec = attnloom.AttentionSpec(
        case.variants,
        num_qo_heads=case.heads[0],
        num_kv_heads=case.heads[1],
        head_dim=HEAD_DIM,
        dtype=torch.bfloat16,
        kv_dtype=case.kv_dtype,
        params=batch.params,
    )
    # As FlashInfer has a wrapper for decode; of a shared prefix the requests' rows make tall tiles.
    decode = {} if case.shared or max(case.qo_lens) > 1 else {"max_qo_len": 1, "max_levels": 1}
    wrapper = attnloom.AttentionWrapper(spec, "cuda", **decode)
    lens = list(case.qo_lens), list(case.kv_lens)
    if case.page_size is None:
        index = attnloom.storage_format("dense").build_index(*lens)
        kv = batch.k.unsqueeze(0), batch.v.unsqueeze(0)
    elif case.shared:
        tables = [table.tolist() for table in batch.tables]
        index = attnloom.storage_format("radix_tree").build_index(*lens, case.page_size, block_tables=tables)
        kv = batch.k, batch.v
    else:
        build = attnloom.storage_format("page_table").build_index
        index = build(*lens, case.page_size, block_tables=batch.padded())
        kv = batch.k, batch.v
    out = torch.empty_like(batch.q)
    wrapper.plan(index)
    run = lambda: wrapper.run(batch.q, kv, out=out)  # noqa: E731
    run.plan, run.note = (lambda: wrapper.plan(index)), f"{len(wrapper._plan.index.levels)} level(s)"
    return run, out


def _flashinfer():
    try:
        import flashinfer
    except ImportError as missing:
        raise UnavailableError(f"flashinfer is not installed ({missing})") from missing
    return flashinfer


def _flashinfer_options(case: Case) -> dict:
    chain = set(case.variants) - {"causal"}
    if chain - {"soft_cap", "alibi", "sliding_window"}:
        raise UnavailableError(f"flashinfer has no {', '.join(sorted(chain))} without code of one's own")
    options = {"q_data_type": torch.bfloat16, "kv_data_type": getattr(torch, case.kv_dtype)}
    if "soft_cap" in chain:
        options["logits_soft_cap"] = 50.0
    if "alibi" in chain:
        options["pos_encoding_mode"] = "ALIBI"
    if "sliding_window" in chain:
        options["window_left"] = case.params["sliding_window.left"]
    return options


def _workspace():
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device="cuda")


def _pages_of(batch: Batch, first: int = 0):
    counts = [len(table) - first for table in batch.tables]
    indptr = torch.tensor(np.concatenate([[0], np.cumsum(counts)]), dtype=torch.int32, device="cuda")
    indices = torch.from_numpy(np.concatenate([table[first:] for table in batch.tables])).cuda()
    last = [(kv - 1) % batch.case.page_size + 1 for kv in batch.case.kv_lens]
    return indptr, indices, torch.tensor(last, dtype=torch.int32, device="cuda")


def flashinfer_decode(batch: Batch, *, tensor_cores: bool):
    """FlashInfer's paged decode."""
    flashinfer, case = _flashinfer(), batch.case
    if max(case.qo_lens) > 1:
        raise UnavailableError("not a decode batch")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(_workspace(), "NHD", use_tensor_cores=tensor_cores)
    plan = lambda: wrapper.plan(  # noqa: E731
        *_pages_of(batch), *case.heads, HEAD_DIM, case.page_size, **_flashinfer_options(case)
    )
    return _planned(wrapper, plan, batch)


def flashinfer_prefill(batch: Batch, *, backend: str):
    """FlashInfer's ragged or paged prefill."""
    flashinfer, case = _flashinfer(), batch.case
    options = {"causal": True, **_flashinfer_options(case)}
    qo_indptr = torch.from_numpy(batch.qo_indptr).cuda()
    if case.page_size is None:
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(_workspace(), "NHD", backend=backend)
        kv_indptr = torch.from_numpy(batch.kv_indptr).cuda()
        wrapper.plan(qo_indptr, kv_indptr, *case.heads, HEAD_DIM, **options)
        out = torch.empty_like(batch.q)
        return (lambda: wrapper.run(batch.q, batch.k, batch.v, out=out)), out
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_workspace(), "NHD", backend=backend)
    plan = lambda: wrapper.plan(  # noqa: E731
        qo_indptr, *_pages_of(batch), *case.heads, HEAD_DIM, case.page_size, **options
    )
    return _planned(wrapper, plan, batch)


def flashinfer_cascade(batch: Batch):
    """FlashInfer's two-level cascade."""
    flashinfer, case = _flashinfer(), batch.case
    count, shared = len(case.kv_lens), case.shared // case.page_size
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, _workspace(), "NHD")
    own = _pages_of(batch, shared)

    def ints(*values):
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    prefix = torch.from_numpy(batch.tables[0][:shared]).cuda()
    plan = lambda: wrapper.plan(  # noqa: E731
        [ints(0, count), ints(*range(count + 1))],
        [ints(0, shared), own[0]],
        [prefix, own[1]],
        [ints(case.page_size), own[2]],
        *case.heads,
        HEAD_DIM,
        case.page_size,
        q_data_type=torch.bfloat16,
    )
    plan()
    box = [None]

    def run():
        box[0] = wrapper.run(batch.q, (batch.k, batch.v))

    return run, box


def _planned(wrapper, plan, batch: Batch):
    plan()
    out = torch.empty_like(batch.q)
    run = lambda: wrapper.run(batch.q, (batch.k, batch.v), out=out)  # noqa: E731
    run.plan = plan
    return run, out


def sdpa(batch: Batch, *, backend: str):
    """torch's own, for equal lengths."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    case = batch.case
    if case.page_size is not None or len(set(case.kv_lens)) != 1 or case.variants != ("causal",):
        raise UnavailableError("SDPA takes dense causal batches of equal lengths")
    shape = (len(case.kv_lens), case.kv_lens[0], -1, HEAD_DIM)
    q, k, v = (x.view(shape).transpose(1, 2) for x in (batch.q, batch.k, batch.v))
    box = [None]

    def run():
        with sdpa_kernel(getattr(SDPBackend, backend)):
            box[0] = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return run, box


def flex(batch: Batch):
    """FlexAttention with its Triton kernels."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    case = batch.case
    if case.page_size is not None or len(set(case.kv_lens)) != 1:
        raise UnavailableError("FlexAttention is run on dense batches of equal lengths")
    length = case.kv_lens[0]
    shape = (len(case.kv_lens), length, -1, HEAD_DIM)
    q, k, v = (x.view(shape).transpose(1, 2).contiguous() for x in (batch.q, batch.k, batch.v))
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cuda")
    slopes = 2.0 ** (-8.0 * torch.arange(1, case.heads[0] + 1, device="cuda") / case.heads[0])
    mods = {
        ("causal",): None,
        ("causal", "soft_cap"): lambda x, b, h, i, j: 50.0 * torch.tanh(x / 50.0),
        ("causal", "alibi"): lambda x, b, h, i, j: x + slopes[h] * (j - i),
    }
    if case.variants not in mods:
        raise UnavailableError("no score_mod was written for it")
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    box = [None]

    def run():
        box[0] = compiled(q, k, v, score_mod=mods[case.variants], block_mask=mask).transpose(1, 2)

    return run, box


PEERS = {
    "attnloom": attnloom_,
    "flashinfer-tc": lambda batch: flashinfer_decode(batch, tensor_cores=True),
    "flashinfer-cudacore": lambda batch: flashinfer_decode(batch, tensor_cores=False),
    "flashinfer-fa2": lambda batch: flashinfer_prefill(batch, backend="fa2"),
    "flashinfer-fa3": lambda batch: flashinfer_prefill(batch, backend="fa3"),
    "flashinfer-cascade": flashinfer_cascade,
    "sdpa-flash": lambda batch: sdpa(batch, backend="FLASH_ATTENTION"),
    "sdpa-cudnn": lambda batch: sdpa(batch, backend="CUDNN_ATTENTION"),
    "flex": flex,
}
