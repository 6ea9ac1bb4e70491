"""Emulated kernels against the float64 oracle: families, variants, formats, splits and merges."""

from __future__ import annotations

from types import SimpleNamespace

import attnloom
import attrs
import numpy as np
import pytest
import torch
from emulation.bench import AMPERE, HOPPER, KERNELS, same_bits
from gpu.bench import HARDER, SPECS

BATCHES = {
    "decode": ([(1, 130), (1, 0), (1, 17), (1, 64)], 1),
    "split": ([(1, 300), (2, 260), (1, 300)], 16),
    "prefill": ([(40, 90), (0, 9), (3, 0), (1, 33), (35, 20)], 16),
}
"""Requests `(qo_len, kv_len)` and the page size."""


def rounding(kernel):
    """How much more of it a kernel has, as on a device."""
    _, name, _ = KERNELS[kernel]
    return HARDER.get(name, 1.0)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_batches(bench, rng, kernel, batch):
    wrapper = bench.wrapper(kernel)
    index, host, data = bench.batch(rng, wrapper.spec, *BATCHES[batch])
    scales = {"k_scale": 0.5, "v_scale": 1.5} if wrapper.spec.kv_dtype.startswith("float8") else {}
    bench.check(wrapper, index, host, data, scale=rounding(kernel), **scales)


@pytest.mark.parametrize("num_workers", (1, 3, 40))
@pytest.mark.parametrize("kernel", ("causal", "wgmma", "teams"))
def test_workers(bench, rng, kernel, num_workers):
    wrapper = bench.wrapper(kernel, num_workers=num_workers)
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 400), (1, 70), (34, 300)], 3)
    bench.check(wrapper, index, host, data)
    if num_workers == 40:
        assert wrapper.workspace_size() > 0 and not wrapper._plan.args.merge_pass


@pytest.mark.parametrize("kernel", ("causal", "wgmma", "teams"))
def test_orders_of_arrival(bench, rng, kernel):
    """Whichever part of a row is written last: the merge and its bits are the same."""
    wrapper = bench.wrapper(kernel, num_workers=40)
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 600), (1, 500), (1, 400)])
    first = bench.check(wrapper, index, host, data)
    assert wrapper.workspace_size() > 0 and not wrapper._plan.args.merge_pass
    for seed in range(2, 10):
        again = bench.run(wrapper, data, seed=seed)
        assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))


def test_more_parts_than_are_merged_at_a_time(bench, rng):
    wrapper = bench.wrapper("window", num_workers=120)
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 6000)])
    bench.check(wrapper, index, host, data, params={"sliding_window.left": -1}, scale=2.0)
    assert max(len(merge.parts) for merge in wrapper._plan.view.decode().merges) > 16


def test_kernel_of_decode_alone(bench, rng):
    wrapper = bench.wrapper("causal", max_qo_len=1)
    assert wrapper.kernel.tiles.tall is None
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 200), (1, 33), (1, 0)])
    bench.check(wrapper, index, host, data)


@pytest.mark.parametrize("kernel", ("causal", "wgmma", "teams"))
def test_scores_that_grow(bench, rng, kernel):
    """O~ is rescaled again and again, also while a product is in flight."""
    wrapper = bench.wrapper(kernel)
    index, host, data = bench.batch(rng, wrapper.spec, [(33, 320)])
    pages = index.levels[0].indices.ravel()
    data.k[pages] *= torch.linspace(0, 8, len(pages)).view(-1, 1, 1, 1).to(data.k.dtype)
    assert data.kv[0] is data.k
    bench.check(wrapper, index, host, data, scale=2.0)


@pytest.mark.parametrize("num_workers", (1, 2))
@pytest.mark.parametrize("kernel", ("wgmma", "wgmma_window", "wgmma_e4m3_rope", "teams", "teams_window"))
def test_units_that_follow_each_other(bench, rng, kernel, num_workers):
    """Of both tile classes, with no keys and with many, fewer than 64 rows and more."""
    wrapper = bench.wrapper(kernel, num_workers=num_workers)
    requests = [(33, 150), (1, 90), (9, 0), (16, 16), (40, 60), (3, 33), (17, 300)]
    index, host, data = bench.batch(rng, wrapper.spec, requests)
    bench.check(wrapper, index, host, data, scale=rounding(kernel))
    assert {item.tile_class for item in wrapper._plan.view.decode().items} == {0, 1}


@pytest.mark.parametrize("left", (5, 62, 65, 100))
@pytest.mark.parametrize("kernel", ("wgmma_window", "teams_window"))
def test_windows_that_half_a_tile_sees_nothing_of(bench, rng, kernel, left):
    wrapper = bench.wrapper(kernel, num_workers=2)
    index, host, data = bench.batch(rng, wrapper.spec, [(70, 200), (64, 64)])
    bench.check(wrapper, index, host, data, params={"sliding_window.left": left}, scale=2.0)


@pytest.mark.parametrize("left", (0, 63, -1))
@pytest.mark.parametrize("kernel", ("window", "wgmma_window", "teams_window"))
def test_windows(bench, rng, kernel, left):
    wrapper = bench.wrapper(kernel)
    index, host, data = bench.batch(rng, wrapper.spec, [(33, 200), (1, 150)])
    bench.check(wrapper, index, host, data, params={"sliding_window.left": left}, scale=2.0)


@pytest.mark.parametrize("form", ("composed", "single"))
@pytest.mark.parametrize("kernel", ("causal", "window", "sigmoid", "wgmma", "teams"))
def test_shared_prefixes(bench, radix_index, rng, kernel, form):
    wrapper = bench.wrapper(kernel)
    index, pages = radix_index(rng, [(0, 1, 40)] * 6 + [(1, 5, 90), (2, 33, 40)], roots=(20, 6, 0))
    data = bench.tensors(rng, wrapper.spec, index, pages)
    index = index.single if form == "single" else attrs.evolve(index, single=None)
    bench.check(wrapper, index, index, data, scale=rounding(kernel))
    assert wrapper._plan.args.merge_pass == (form == "composed")


@pytest.mark.parametrize("kernel", ("causal", "window", "wgmma", "teams"))
def test_trees(bench, rng, kernel):
    wrapper = bench.wrapper(kernel)
    index = attnloom.storage_format("tree_attention").build_index(
        [7, 4, 3],
        [150, 4, 60],
        16,
        parents=[[-1, 0, 0, 1, 1, 2, 5], [-1, 0, 1, 2], [-1, -1, 0]],
        block_tables=rng.permutation(60).astype(np.int32).reshape(3, 20),
    )
    bench.check(wrapper, index, index, bench.tensors(rng, wrapper.spec, index, 60), scale=rounding(kernel))


@pytest.mark.parametrize("kernel", ("plain", "wgmma_plain", "teams_plain"))
def test_masks(bench, rng, kernel):
    wrapper = bench.wrapper(kernel)
    requests = [(5, 70), (1, 33), (40, 90)]
    index, host, data = bench.batch(rng, wrapper.spec, requests, mask=[rng.random(shape) < 0.6 for shape in requests])
    bench.check(wrapper, index, host, data)


def test_bits_of_a_request_alone(bench, rng):
    wrapper = bench.wrapper("invariant", num_workers=11)
    lens = [1, 1, 20, 1], [1500, 40, 300, 1]
    tables = rng.permutation(400).astype(np.int32).reshape(4, 100)
    build = attnloom.storage_format("page_table").build_index
    index = build(*lens, 16, block_tables=tables)
    data = bench.tensors(rng, wrapper.spec, index, 400)
    whole = bench.check(wrapper, index, index, data)
    for row, (begin, qo_len, kv_len) in enumerate(zip(index.qo_indptr, *lens, strict=False)):
        rows = slice(begin, begin + qo_len)
        wrapper.plan(build([qo_len], [kv_len], 16, block_tables=tables[row : row + 1]))
        alone = bench.run(wrapper, SimpleNamespace(q=data.q[rows], dq=data.dq[rows], kv=data.kv, kv_layout="NHD"))
        assert all(same_bits(one, of_all[rows]) for one, of_all in zip(alone, whole, strict=True)), row


TWICE = """
#pragma once
#include <attnloom/variant.h>

struct Twice {
  template <class Params>
  static constexpr int rotated_dims = 64;

  template <class Params, class Row>
  ATTNLOOM_FN void query_transform(const Params&, Row& row, const attnloom::Site& site) const {
    turn(row, site.q_pos);
  }
  template <class Params, class Row>
  ATTNLOOM_FN void key_transform(const Params&, Row& row, const attnloom::Site& site) const {
    turn(row, site.kv_pos);
  }

 private:
  template <class Row>
  static ATTNLOOM_FN void turn(Row& row, int pos) {
    row.template rotate<attnloom::Pair::half, 64>(pos, [](int i) { return 0.01f * (i + 1); });
    row.template rotate<attnloom::Pair::adjacent, 64>(pos, [](int i) { return 0.3f / (i + 1); });
  }
};
"""

TWICE_REFERENCE = """
import numpy as np


def turn(x, pos):
    i = np.arange(32) + 1
    turns = ((slice(0, 32), slice(32, 64), 0.01 * i), (slice(0, 64, 2), slice(1, 64, 2), 0.3 / i))
    x = np.asarray(x, np.float64).copy()
    for first, second, frequency in turns:
        angle = np.asarray(pos)[..., None] * frequency
        a, b = x[..., first].copy(), x[..., second].copy()
        x[..., first] = a * np.cos(angle) - b * np.sin(angle)
        x[..., second] = b * np.cos(angle) + a * np.sin(angle)
    return x


class Twice:
    def query_transform(self, p, x, site):
        return turn(x, site.q_pos)

    def key_transform(self, p, x, site):
        return turn(x, site.kv_pos)
"""


@pytest.mark.parametrize("arch", (AMPERE, HOPPER))
def test_two_rotations_of_a_row(bench, rng, make_package, monkeypatch, arch):
    package = make_package(f"turned_twice_{arch}", {"twice.h": TWICE, "reference.py": TWICE_REFERENCE})
    variant = attnloom.Variant(
        name="twice",
        struct="Twice",
        header="twice.h",
        package=package,
        functors=("query_transform", "key_transform"),
        reference=f"{package}.reference:Twice",
    )
    monkeypatch.setitem(SPECS, "twice", {"variants": [variant, "causal"], "head_dim": 64})
    monkeypatch.setitem(KERNELS, f"twice_{arch}", (arch, "twice", {}))
    wrapper = bench.wrapper(f"twice_{arch}")
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 130), (34, 60)])
    bench.check(wrapper, index, host, data, scale=2.0)


@pytest.mark.parametrize("cap", (1e-3, 1e6, 1e9, 1e30))
def test_caps_far_from_the_logits(bench, rng, cap):
    wrapper = bench.wrapper("soft_cap")
    params = {"soft_cap.cap": cap}
    index, host, data = bench.batch(rng, wrapper.spec, [(1, 130), (34, 60)])
    bench.check(wrapper, index, host, data, params=params)
