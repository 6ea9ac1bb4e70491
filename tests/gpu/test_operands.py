"""What is done to K and V on their way into the tensor cores: fp8 widened, rows transformed, at every head dim."""

from __future__ import annotations

import itertools

import attnloom
import pytest
import torch
from attnloom import jit
from attnloom.kernel import describe
from attnloom.targets import target_of

HEAD_DIMS = ((64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (256, 256))
FORMATS = tuple(itertools.product(("bfloat16", "float16"), ("float8_e4m3fn", "float8_e5m2")))
ROTATIONS = {
    "half": {},
    "interleaved": {"rope.interleaved": True},
    "part": {"rope.rotary_dim": 48},
    "narrow": {"rope.rotary_dim": 20},
}
WIDE_ROTATIONS = {
    "far": {"rope.offset": 2**24 - 1000},
    "scaled": {"rope.scaling": "yarn", "rope.factor": 8.0},
    "interleaved part": {"rope.interleaved": True, "rope.rotary_dim": 100},
    "half": {"rope.rotary_dim": 64},
    "three quarters": {"rope.rotary_dim": 96},
    "narrow": {"rope.rotary_dim": 20},
}
REQUESTS = [(1, 300), (1, 17), (1, 0), (2, 129), (1, 16), (3, 40)]


def sizes(dims):
    return {"head_dim": dims[0], "head_dim_v": dims[1]}


def narrow_specs(bench):
    """A kernel of few rows a head dim, the dtypes in turns; and one of each pair of dtypes."""
    for n, dims in enumerate(HEAD_DIMS):
        dtype, kv_dtype = FORMATS[n % 4]
        yield bench.spec("plain", dtype=dtype, kv_dtype=kv_dtype, tile=attnloom.Tile(16, 32, "mma"), **sizes(dims))
    for dtype, kv_dtype in FORMATS:
        yield bench.spec("causal", dtype=dtype, kv_dtype=kv_dtype)


def rotated_specs(bench):
    """Rotated and normalised keys of both widths, every head dim and way of pairing."""
    for n, dims in enumerate(HEAD_DIMS):
        for narrow in (False, True):
            name = tuple(ROTATIONS)[(n + 2 * narrow) % 4]
            dtype, kv_dtype = FORMATS[n % 4]
            yield bench.spec(
                "qk_norm" if n % 2 else "e4m3_rope",
                params=ROTATIONS[name],
                dtype=dtype,
                kv_dtype=kv_dtype if narrow else dtype,
                tile=attnloom.Tile(16, 32, "mma"),
                **sizes(dims),
            )


def wide_specs(bench):
    """Rotations of 16-bit keys of 128 elements, whose angles are found from each other's."""
    for params in WIDE_ROTATIONS.values():
        yield bench.spec("e4m3_rope", params=params, dtype="float16", kv_dtype="float16", head_dim=128)


@pytest.fixture(scope="module")
def specs(bench):
    made = {
        "narrow": list(narrow_specs(bench)),
        "rotated": list(rotated_specs(bench)),
        "wide": list(wide_specs(bench)),
    }
    target = target_of(bench.device)
    jit.prepare([describe(spec, target)[2] for kind in made.values() for spec in kind], target.toolchain(False))
    return made


def scales_of(rng, spec):
    if not spec.kv_dtype.startswith("float8"):
        return {}
    k, v = torch.tensor(rng.uniform(0.5, 1.5, (2, spec.num_kv_heads)), dtype=torch.float32, device="cuda")
    return {"k_scale": k, "v_scale": v}


@pytest.mark.parametrize("page_size", (1, 16, 48))
@pytest.mark.parametrize("n", range(len(HEAD_DIMS) + len(FORMATS)))
def test_fp8(bench, rng, specs, n, page_size):
    spec = specs["narrow"][n]
    index, host, data = bench.batch(rng, spec, REQUESTS, page_size)
    bench.check(bench.wrapper(spec), index, host, data, scale=2.0, **scales_of(rng, spec))


@pytest.mark.parametrize("n", range(2 * len(HEAD_DIMS)))
def test_transformed_keys(bench, rng, specs, n):
    spec = specs["rotated"][n]
    index, host, data = bench.batch(rng, spec, REQUESTS)
    bench.check(bench.wrapper(spec), index, host, data, scale=4.0, **scales_of(rng, spec))


@pytest.mark.parametrize("page_size", (1, 16))
@pytest.mark.parametrize("n", range(len(WIDE_ROTATIONS)), ids=WIDE_ROTATIONS)
def test_rotations(bench, rng, specs, n, page_size):
    spec = specs["wide"][n]
    index, host, data = bench.batch(rng, spec, [*REQUESTS, (70, 200)], page_size)
    bench.check(bench.wrapper(spec), index, host, data, scale=2.0)


@pytest.mark.parametrize("n", range(len(FORMATS)))
def test_every_fp8_number_is_read_exactly(bench, rng, n):
    spec = bench.spec("plain", dtype=FORMATS[n][0], kv_dtype=FORMATS[n][1], out_dtype="float32", num_qo_heads=2)
    codes = torch.arange(256, dtype=torch.uint8).view(getattr(torch, spec.kv_dtype))
    codes = codes[codes.float().isfinite()]
    keys = rng.permutation(len(codes) * spec.head_dim) % len(codes)
    cache = codes.view(torch.uint8)[keys].view(len(codes), 1, 1, spec.head_dim).view(codes.dtype).to(bench.device)
    cache = torch.cat([cache, cache], 2)
    rows, columns = torch.arange(len(codes)), torch.arange(len(codes)) % spec.head_dim
    index = attnloom.storage_format("page_table").build_index(
        [1] * len(codes), [1] * len(codes), 1, block_tables=rows.int().numpy()[:, None]
    )
    wrapper = attnloom.AttentionWrapper(spec, bench.device)
    wrapper.plan(index)
    values = cache.float()[:, 0].cpu()
    asked = values[rows, :, columns]  # brought to between 1 and 2, so that weights and lse are exact to a few ulp
    factor = torch.exp2(-torch.floor(torch.log2(asked.abs().clamp(2.0**-15, 2.0**15))))
    q = torch.zeros(len(codes), 2, spec.head_dim)
    q[rows, :, columns] = factor
    out, lse = wrapper.run(q.to(getattr(torch, spec.dtype)).to(bench.device), (cache, cache), return_lse=True)
    torch.testing.assert_close(out.cpu(), values, rtol=1e-5, atol=0)
    torch.testing.assert_close(lse.cpu(), asked * factor * spec.sm_scale, rtol=0, atol=1e-5)
