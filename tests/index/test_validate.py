"""Hand-made indices: what `validate` and `check_pages` refuse, and what they say."""

import subprocess
import sys

import attrs
import numpy as np
import pytest
import torch
from attnloom import storage_format
from attnloom.errors import IndexFormatError
from attnloom.index import MAX_LEVELS, ComposedIndex, Level, StorageFormat


def prefix(**changes):
    """Tokens 0, 1, 3 (requests 0, 0, 2) share 4 keys in pages 5 and 6."""
    fields = {"row_indptr": [0, 3], "row_tokens": [0, 1, 3], "kv_len": [4], "kv_start": [0], "kv_offset": [0]}
    return Level(**{**fields, "page_begin": [0], "indices": [5, 6, 1, 2, 3], **changes})


def suffix(**changes):
    """What is left of requests 0, 1, 2: keys [4, 6), [0, 3), [4, 5)."""
    fields = {"row_indptr": [0, 2, 3, 4], "kv_len": [2, 3, 1], "kv_start": [4, 0, 4], "kv_offset": [0, 1, 0]}
    return Level(**{**fields, "page_begin": [2, 2, 4], "indices": [5, 6, 1, 2, 3], **changes})


def index(levels=None, **changes):
    fields = {"page_size": 2, "qo_indptr": [0, 2, 3, 4], "kv_len": [6, 3, 5], "token_request": [0, 0, 1, 2]}
    return ComposedIndex(**{**fields, "levels": levels or (prefix(), suffix()), **changes})


def test_a_sound_index_passes():
    sound = index()
    sound.validate()
    sound.check_pages(7)
    assert sound.max_page() == 6
    dense = sound.to_dense()
    assert dense.slot.tolist() == [
        [10, 11, 12, 13, 2, 3],
        [10, 11, 12, 13, 2, 3],
        [3, 4, 5, -1, -1, -1],
        [10, 11, 12, 13, 6, -1],
    ]
    assert dense.level.tolist() == [[0] * 4 + [1] * 2, [0] * 4 + [1] * 2, [1] * 3 + [-1] * 3, [0] * 4 + [1, -1]]
    assert dense.kv_pos[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert dense.q_pos.tolist() == [4, 5, 2, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 0}, "page_size is 0"),
        ({"qo_indptr": [0, 2, 3]}, r"qo_indptr has 3 offsets, .*3 request\(s\)"),
        ({"qo_indptr": [1, 2, 3, 4]}, r"qo_indptr\[0\] is 1, expected 0"),
        ({"qo_indptr": [0, 3, 2, 4]}, "qo_indptr decreases from 3 to 2 at 2"),
        ({"qo_indptr": [0, 2, 3, 5]}, r"qo_indptr ends at 5, token_request has 4 token\(s\)"),
        ({"kv_len": [6, -3, 5]}, r"kv_len\[1\] is -3"),
        ({"token_request": [0, 1, 1, 2]}, r"token_request\[1\] is 1, qo_indptr puts that token in request 0"),
        ({"q_pos": [1, 2]}, r"q_pos has 2 position\(s\), expected one for each of 4"),
        ({"kv_len": [6, 3, 4]}, r"levels\[1\]: row 2 ends at key 5 .* request 2 has 4 key\(s\)"),
        ({"levels": [prefix()]}, "token 2 is in no row of any level"),
        ({"levels": [prefix()] * (MAX_LEVELS + 1)}, "the index has 5 levels, at most 4"),
        ({"levels": [prefix(kv_start=[1]), suffix()]}, r"token 0 sees keys \[1, 5\) in levels\[0\] and \[4, 6\)"),
    ],
)
def test_contradictions_of_the_batch(changes, message):
    with pytest.raises(IndexFormatError, match=message):
        index(**changes).validate()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_indptr": [0, 3, 3]}, r"levels\[0\]\.row_indptr has 3 element\(s\), expected 2 for 1 row\(s\)"),
        ({"kv_start": [0, 0]}, r"levels\[0\]\.kv_start has 2 element\(s\), expected 1"),
        ({"row_indptr": [3, 0]}, r"levels\[0\]\.row_indptr decreases from 3 to 0"),
        ({"row_indptr": [-1, 3]}, r"levels\[0\]\.row_indptr\[0\] is -1"),
        ({"row_indptr": [0, 4]}, r"spans \[0, 4\) of row_tokens, which has 3 element\(s\)"),
        ({"row_tokens": None, "row_indptr": [0, 5]}, r"spans \[0, 5\) of the tokens, the batch has 4"),
        ({"row_tokens": [0, 1, 4]}, r"row_tokens\[2\] is 4, the batch has 4"),
        ({"row_tokens": [0, 1, -1]}, r"row_tokens\[2\] is -1"),
        ({"row_tokens": [0, 1, 1]}, r"levels\[0\] holds token 1 2 times"),
        ({"row_tokens": [0, 1, 2]}, r"row 0 ends at key 4 \(kv_start 0 \+ kv_len 4\), its request 1 has 3 key\(s\)"),
        ({"kv_len": [-4]}, r"levels\[0\]\.kv_len\[0\] is -4"),
        ({"kv_offset": [2]}, r"levels\[0\]\.kv_offset\[0\] is 2, expected less than the page size 2"),
        ({"page_begin": [4]}, r"row 0 with 4 key\(s\) from slot 0 uses entries \[4, 6\) of indices, which has 5"),
        ({"page_begin": [-1]}, r"uses entries \[-1, 1\)"),
        ({"page_begin": [2**63 - 1]}, rf"uses entries \[{2**63 - 1}, {2**63 + 1}\)"),
        ({"row_indptr": [0, 2**31 - 1]}, rf"spans \[0, {2**31 - 1}\) of row_tokens"),
        ({"row_tokens": None, "row_indptr": [0, 2**31 - 1]}, rf"spans \[0, {2**31 - 1}\) of the tokens"),
        ({"indices": [[5, 6, 1, 2, 3]]}, r"levels\[0\]\.indices has shape \[1, 5\], expected \[nnz\]"),
        ({"per_head": True}, r"has shape \[5\], expected \[num_kv_heads, nnz\]"),
        ({"indices": torch.arange(10)[::2]}, "indices has a last stride of 2, expected 1"),
        ({"block_pos": [0, 2]}, r"block_pos has 2 position\(s\), indices has 5 entries"),
        ({"mask_bits": [1]}, "mask_bits and mask_begin come together; mask_begin is missing"),
        ({"mask_begin": [0]}, "mask_bits and mask_begin come together; mask_bits is missing"),
        ({"mask_bits": [1], "mask_begin": [1]}, r"row 0 reads mask_bits\[1, 2\), which has 1"),
        ({"mask_bits": [1], "mask_begin": [2**63 - 1]}, rf"row 0 reads mask_bits\[{2**63 - 1}, {2**63}\)"),
        ({"mask_bits": [1], "mask_begin": [-2]}, r"mask_begin\[0\] is -2, expected at least -1"),
        ({"key_pos": [0, 1, 2], "key_pos_begin": [0]}, r"row 0 reads key_pos\[0, 4\), which has 3"),
        ({"key_pos": [0, 1, 2]}, "key_pos_begin is missing"),
    ],
)
def test_contradictions_of_a_level(changes, message):
    with pytest.raises(IndexFormatError, match=message):
        index([prefix(**changes), suffix()]).validate()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_len": [4.0]}, "Level.kv_len has dtype float64"),
        ({"kv_len": [[4]]}, r"Level.kv_len has 2 dimension\(s\)"),
        ({"kv_len": [2**31]}, "Level.kv_len holds 2147483648, which int32 cannot"),
        ({"mask_bits": [-1], "mask_begin": [0]}, "Level.mask_bits holds -1, which uint32 cannot"),
        ({"row_tokens": [True, False, True]}, "Level.row_tokens has dtype bool"),
        ({"indices": [1.5]}, "Level.indices has dtype float64"),
        ({"indices": torch.zeros(3)}, "Level.indices has dtype torch.float32"),
        ({"kv_len": torch.zeros(1, device="meta", dtype=torch.int32)}, "Level.kv_len is on meta"),
        ({"kv_len": [[1], [2, 3]]}, "Level.kv_len is no array of integers"),
    ],
)
def test_arrays_of_the_wrong_kind_are_refused_at_once(changes, message):
    with pytest.raises(IndexFormatError, match=message):
        prefix(**changes)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.int16, np.uint8])
def test_integers_of_any_width_are_converted(dtype):
    level = prefix(kv_len=np.array([4], dtype), row_tokens=np.array([0, 9, 1, 9, 3], dtype)[::2])
    assert (level.kv_len.dtype, level.row_tokens.dtype, level.page_begin.dtype) == (np.int32, np.int32, np.int64)
    assert level.row_tokens.flags.c_contiguous
    index([level, suffix()]).validate()


@pytest.mark.parametrize("order", ["<", ">"])
def test_arrays_of_either_byte_order_are_read(order):
    fields = {
        "mask_bits": [9],
        "mask_begin": [0],
        "block_pos": [0, 2, 4, 6, 8],
        "key_pos": [0] * 4,
        "key_pos_begin": [0],
    }
    natural = prefix(**fields)
    for name in (field.name for field in attrs.fields(Level)):
        array = getattr(natural, name)
        if array is None or isinstance(array, bool):
            continue
        kinds = ("i4", "i8") if name == "indices" else (array.dtype.str[1:],)
        for kind in kinds:
            read = getattr(prefix(**{**fields, name: array.astype(order + kind)}), name)
            assert read.dtype.isnative and read.tolist() == array.tolist(), name
    tables = np.array([[1, 2], [3, 0]], f"{order}i4")
    for needs in ({"block_tables": tables}, {"kv_indptr": [0, 2, 4], "kv_indices": tables.reshape(-1)}):
        built = storage_format("page_table").build_index([1, 1], [7, 3], 4, **needs)
        assert built.levels[0].indices.dtype.isnative and built.max_page() == 3


def test_tensors_of_page_ids_stay_where_they_are():
    pages = torch.tensor([5, 6, 1, 2, 3])
    level = prefix(indices=pages)
    assert level.indices is pages
    index([level, suffix()]).validate()
    assert prefix(indices=np.array([5, 6, 1, 2, 3], np.uint32)).indices.dtype == np.int64
    elsewhere = index([prefix(indices=torch.zeros(5, dtype=torch.int32, device="meta")), suffix()])
    elsewhere.validate()
    elsewhere.check_pages(4)
    assert elsewhere.max_page() == 3


@pytest.mark.parametrize("indices", [[5, 6, 1, 2, 3], torch.tensor([5, 6, 1, 2, 3], dtype=torch.int32)])
def test_page_ids_out_of_range(indices):
    pages = index([prefix(indices=indices), suffix()])
    with pytest.raises(IndexFormatError, match=r"levels\[0\]: row 0 uses page 6 \(entry 1 of indices\), .* 6 page"):
        pages.check_pages(6)
    pages = index([prefix(), suffix(indices=[9, 9, 1, -2, 3])])
    with pytest.raises(IndexFormatError, match=r"levels\[1\]: row 1 uses page -2 \(entry 3"):
        pages.check_pages(7)
    heads = index([prefix(indices=[[5, 6, 99], [5, 7, 99]], per_head=True), suffix()])
    with pytest.raises(IndexFormatError, match=r"row 0 uses page 7 \(entry 1 of indices of kv head 1\)"):
        heads.check_pages(7)


def test_the_single_view_is_held_to_the_same_batch():
    single = index(
        [
            Level(
                row_indptr=[0, 2, 3, 4],
                kv_len=[6, 3, 5],
                kv_start=[0] * 3,
                kv_offset=[0, 1, 0],
                page_begin=[0, 3, 6],
                indices=[5, 6, 1, 2, 3, 0, 5, 6, 3],
            )
        ]
    )
    index(single=single).validate()
    with pytest.raises(IndexFormatError, match="single has 2 levels"):
        index(single=index()).validate()
    with pytest.raises(IndexFormatError, match="single.page_size is 3"):
        index(single=attrs.evolve(single, page_size=3)).validate()
    with pytest.raises(IndexFormatError, match="single.kv_len differs"):
        index(single=attrs.evolve(single, kv_len=[6, 3, 6])).validate()
    with pytest.raises(IndexFormatError, match=r"row 0 uses page 6"):
        index([suffix(kv_len=[0] * 3)], single=single).check_pages(6)


def test_trust_is_given_once_and_lost_by_change():
    trusted = index().trusted()
    attrs.evolve(trusted).ensure_valid()
    with pytest.raises(IndexFormatError, match="q_pos has 1"):
        attrs.evolve(trusted, q_pos=[1]).ensure_valid()
    wrong = index(q_pos=[1])
    wrong.trusted().ensure_valid()
    with pytest.raises(IndexFormatError, match="q_pos has 1"):
        wrong.validate()


def test_empty_batch():
    empty = ComposedIndex(page_size=4, qo_indptr=[0], kv_len=[], token_request=[], levels=())
    empty.validate()
    empty.check_pages(0)
    assert (empty.num_requests, empty.num_tokens, empty.max_page()) == (0, 0, -1)
    assert empty.to_dense().visible.shape == (0, 0)


def test_importing_the_index_imports_no_numpy():
    code = "import attnloom.index, sys; assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_format_calls_its_builder():
    dense = StorageFormat(name="any", builder="attnloom.dense:build_index")
    assert dense.build_index([1], [3], 3).kv_len.tolist() == [3]
