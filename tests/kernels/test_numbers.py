"""Infinities, NaN, huge logits, and rows that see nothing."""

import numpy as np
import pytest
import torch
from kernels import handmade
from kernels.cases import page_table, poisoned_cache, run_and_compare, used_slots
from kernels.oracle import Causal

CAUSAL = handmade.one_variant("#include <attnloom/variants/causal.h>", "attnloom::variants::Causal")
SMALL = {"short": (8, 32), "tall": (24, 64)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("logit", [-1e5, -524288.0, 1e4, 3e38])
def test_logits_of_any_size(dtype, logit):
    """q . k = logit for every key, or for one key while the others are far below."""
    library = handmade.load(CAUSAL, dtype, d=64, **SMALL)
    for lens in ([1], [1]), ([1], [70]), ([3], [70]):
        batch, pages = page_table(np.random.default_rng(0), *lens, 16)
        rng = np.random.default_rng(0)
        k = poisoned_cache(rng, pages, 16, 1, 64, dtype, used_slots(batch))
        v = poisoned_cache(rng, pages, 16, 1, 64, dtype, used_slots(batch))
        k[~k.isnan()] = 0
        k[..., 0][~k[..., 0].isnan()] = 1
        q = torch.zeros(sum(lens[0]), 1, 64, dtype=k.dtype)
        q[..., 0] = logit
        logit = float(q[0, 0, 0])
        plan = handmade.make_plan(library, batch, 1, 1, splits=1.0)
        out, lse = handmade.launch(library, batch, q, k, v, plan, sm_scale=1.0)
        ids = batch.levels[0].pages[0]
        for token in range(lens[0][0]):
            seen = lens[1][0] - lens[0][0] + token + 1
            mean = v[ids].reshape(-1, 64)[:seen].double().mean(0)
            assert torch.allclose(out[token, 0].double(), mean, atol=1e-2)
            assert np.isclose(lse[token, 0], logit + np.log(seen), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_later_tokens_nan_reaches_no_earlier_token(dtype):
    """Keys in use whose K and V are NaN or infinite, hidden by the causal range inside a shared tile."""
    library = handmade.load(CAUSAL, dtype, d=64, **SMALL)
    rng = np.random.default_rng(0)
    batch, pages = page_table(rng, [20], [20], 16)
    k = poisoned_cache(rng, pages, 16, 1, 64, dtype, used_slots(batch))
    v = poisoned_cache(rng, pages, 16, 1, 64, dtype, used_slots(batch))
    q = torch.ones(20, 1, 64, dtype=k.dtype)
    plan = handmade.make_plan(library, batch, 1, 1)
    clean, _ = handmade.launch(library, batch, q, k, v, plan, sm_scale=0.125)
    ids = batch.levels[0].pages[0]
    for bad in (float("nan"), float("inf"), float("-inf")):
        k2, v2 = k.clone(), v.clone()
        k2[ids[0], 10], v2[ids[0], 10] = bad, bad
        out, _ = handmade.launch(library, batch, q, k2, v2, plan, sm_scale=0.125)
        assert torch.allclose(out[:10].float(), clean[:10].float(), atol=1e-2)
        assert out[:10].isfinite().all()
        if np.isnan(bad):
            assert out[10:].isnan().all(), "a visible NaN is not hidden"


def test_rows_that_see_nothing_are_zero_and_minus_infinity():
    library = handmade.load(CAUSAL, d=64, **SMALL)
    rng = np.random.default_rng(0)
    batch, pages = page_table(rng, [5, 2, 3], [2, 0, 3], 4)
    *_, out, lse = run_and_compare(library, batch, pages, 2, 2, Causal(), rng)
    assert (out[:3] == 0).all() and (lse[:3] == -np.inf).all()
    assert (out[5:7] == 0).all() and (lse[5:7] == -np.inf).all()


def test_every_fp8_number_is_read_exactly():
    rng = np.random.default_rng(0)
    for kv_dtype in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"):
        size = 1 if "8" in kv_dtype else 2
        codes = torch.arange(256**size, dtype=torch.int32).to(torch.uint8 if size == 1 else torch.int16)
        numbers = codes.view(getattr(torch, kv_dtype)).reshape(-1, 16, 1, 1)
        keep = numbers.float().isfinite().reshape(-1)
        for dtype in ("float32", "bfloat16"):
            if dtype == "bfloat16" and size == 2:
                continue
            library = handmade.load(handmade.NO_VARIANT, dtype, kv_dtype=kv_dtype, out_dtype="float32", d=1, **SMALL)
            count = int(keep.sum())
            picked = torch.nonzero(keep).reshape(-1)
            if count > 600:
                picked = picked[torch.from_numpy(rng.choice(count, 600, replace=False))]
            batch, _ = page_table(rng, [1] * len(picked), [1] * len(picked), 1)
            batch.levels[0].pages = [[int(i)] for i in picked]
            v = numbers.reshape(-1, 1, 1, 1)
            q = torch.zeros(len(picked), 1, 1, dtype=getattr(torch, dtype))
            out, _ = handmade.launch(library, batch, q, v, v, handmade.make_plan(library, batch, 1, 1), sm_scale=1.0)
            finite = numbers.reshape(-1)[picked].float()
            assert torch.equal(out.reshape(-1), finite)


def test_outputs_round_to_nearest_even():
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, 65504, 65520, 1e-8, 6e-5, 1e30]
    values = torch.from_numpy(
        np.concatenate([rng.standard_normal(500), rng.standard_normal(500) * 1e-6, special]).astype(np.float32)
    )
    for out_dtype in ("float16", "bfloat16"):
        library = handmade.load(handmade.NO_VARIANT, "float32", out_dtype=out_dtype, d=1, **SMALL)
        batch, _ = page_table(rng, [1] * len(values), [1] * len(values), 1)
        batch.levels[0].pages = [[i] for i in range(len(values))]
        v = values.reshape(-1, 1, 1, 1)
        q = torch.zeros(len(values), 1, 1)
        out, _ = handmade.launch(library, batch, q, v, v, handmade.make_plan(library, batch, 1, 1), sm_scale=1.0)
        assert torch.equal(out.reshape(-1), values.to(getattr(torch, out_dtype)))
