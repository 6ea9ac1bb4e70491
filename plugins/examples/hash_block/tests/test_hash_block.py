import pytest
from attnloom.errors import CacheFullError, IndexFormatError
from attnloom.testing import StorageFormatSuite
from attnloom_hash_block.build import build_index
from attnloom_hash_block.manager import HashBlocks


class TestHashBlock(StorageFormatSuite):
    storage_format = "hash_block"


def test_a_prompt_is_found_again():
    manager = HashBlocks(num_pages=8, page_size=2)
    first = manager.insert([1, 2, 3, 4, 5])
    second = manager.insert([1, 2, 3, 4, 9])
    assert (first.cached, second.cached) == (0, 4)
    assert first.pages[:2] == second.pages[:2]
    manager.free(first)
    manager.free(second)
    assert manager.insert([1, 2, 3, 4]).cached == 2, "the last token is always computed"


def test_a_full_cache_changes_nothing():
    manager = HashBlocks(num_pages=2, page_size=2)
    kept = manager.insert([1, 2, 3])
    with pytest.raises(CacheFullError):
        manager.insert([1, 2, 3, 4, 5, 6])
    assert manager.slots(kept).tolist() == [kept.pages[0] * 2, kept.pages[0] * 2 + 1, kept.pages[1] * 2]


def test_contradictions_are_named():
    with pytest.raises(IndexFormatError, match="block 'b' is not in the cache"):
        build_index([1], [4], 2, hashes=[["a", "b"]], blocks={"a": 0}, tails=[-1])
    with pytest.raises(IndexFormatError, match=r"its last 1 key\(s\) need a tail block"):
        build_index([1], [3], 2, hashes=[["a"]], blocks={"a": 0}, tails=[-1])
    with pytest.raises(IndexFormatError, match=r"2 full block\(s\) of 2; 1 hash"):
        build_index([1], [4], 2, hashes=[["a"]], blocks={"a": 0}, tails=[-1])
