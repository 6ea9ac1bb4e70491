from types import SimpleNamespace

import numpy as np
import pytest
from attnloom.compose import compose
from attnloom.errors import ParamError
from attnloom.plugins import PluginSet
from attnloom.testing.functors import FunctorSpec, check_against_reference
from attnloom_bit_mask.packing import pack
from attnloom_bit_mask.reference import BitMask


def pairs(masks):
    """The site of every pair of every request."""
    where = [(r, i, j, *mask.shape) for r, mask in enumerate(masks) for i, j in np.ndindex(mask.shape)]
    request, q_index, kv_index, qo_len, kv_len = np.array(where, np.int64).T
    zero = np.zeros_like(request)
    return SimpleNamespace(
        request=request,
        qo_head=zero,
        kv_head=zero,
        q_index=q_index,
        kv_index=kv_index,
        q_pos=zero + 99,
        kv_pos=zero - 7,
        qo_len=qo_len,
        kv_len=kv_len,
    )


@pytest.fixture
def masks():
    rng = np.random.default_rng(0)
    return [rng.random(shape) < 0.5 for shape in [(1, 1), (3, 33), (0, 5), (4, 0), (7, 32), (2, 31)]]


def test_every_bit_is_found_by_index_never_by_position(masks):
    sites = pairs(masks)
    compiled = check_against_reference(["bit_mask"], pack(masks), sites=sites)
    np.testing.assert_array_equal(compiled.keeps(sites), np.concatenate([mask.reshape(-1) for mask in masks]))


def test_pairs_beyond_the_mask_are_hidden(masks):
    sites = pairs(masks)
    sites.request = sites.request + 1
    compiled = check_against_reference(["bit_mask"], pack(masks), sites=sites)
    assert not compiled.keeps(sites)[sites.request >= len(masks)].any()


def test_offsets_are_64_bit():
    rows, cols = 70_000, 70_000
    sites = pairs([np.ones((1, 1), bool)])
    sites.q_index[:], sites.kv_index[:], sites.kv_len[:] = rows - 1, cols - 1, cols
    words = rows * cols // 32
    p = SimpleNamespace(begin=np.array([0, words]), bits=np.broadcast_to(np.uint32(0), words))
    assert not BitMask().logits_mask(p, sites).any()
    bits = np.broadcast_to(np.uint32(1 << ((rows * cols - 1) % 32)), words)
    composition = compose(["bit_mask"], spec=FunctorSpec(), plugins=PluginSet.default())
    params = {"bit_mask.bits": bits, "bit_mask.begin": [0, words]}
    assert composition.resolve(params).struct.bit_mask.bits.stride[0] == 0
    compiled = check_against_reference(["bit_mask"], params, sites=sites)
    assert compiled.keeps(sites).all()


def test_packing_is_least_significant_bit_first():
    packed = pack([np.array([[True, False, True]]), np.ones((1, 40), bool)])
    assert packed["bit_mask.bits"].tolist() == [5, 2**32 - 1, 255]
    assert packed["bit_mask.begin"].tolist() == [0, 1, 3]
    assert pack([])["bit_mask.begin"].tolist() == [0]


@pytest.mark.parametrize("mask", [np.ones((2, 2)), np.ones(3, bool), [1, 0]])
def test_masks_of_another_kind_are_refused(mask):
    with pytest.raises(ParamError, match="mask of request 0 must be boolean"):
        pack([mask])


@pytest.mark.parametrize(
    ("begin", "said"), [([0, 5], "ends at word 5, beyond the 2 words"), ([2, 0], "not decrease"), ([], "one more")]
)
def test_offsets_that_contradict_the_bits_are_refused(begin, said):
    composition = compose(["bit_mask"], spec=FunctorSpec(), plugins=PluginSet.default())
    with pytest.raises(ParamError, match=said):
        composition.resolve({"bit_mask.bits": [1, 2], "bit_mask.begin": np.array(begin, np.int64)})
