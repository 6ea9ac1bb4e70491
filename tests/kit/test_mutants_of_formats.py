"""The kit tests itself on formats and heuristics that are wrong in one thing each; lines as in `test_mutants.py`."""

from __future__ import annotations

import pytest
from attnloom.testing import StorageFormatSuite, TileHeuristicSuite

POOL = """
from attnloom.pages import PagePool


class Pool(PagePool):
    def _last_is_shared(self, sequence):
        return False

    def needs(self, sequences):
        return {"pages": [sequence.pages for sequence in sequences]}
"""
ANOTHER_SINGLE = """
    import attrs
    other = ComposedIndex(
        page_size=page_size,
        qo_indptr=qo_indptr,
        kv_len=kv_len,
        token_request=token_request,
        levels=[attrs.evolve(level, indices=level.indices + 1)],
    )
    return ComposedIndex(
        single=other,"""

FORMATS = [
    (
        "slots_reversed",
        "storage_format",
        "build_and_back",
        "finds key 0 in slot",
        ("build.py", "for page in own]", "for page in reversed(own)]"),
    ),
    (
        "one_key_too_many",
        "storage_format",
        "index_is_valid",
        "kv_len",
        (
            "build.py",
            "        row_indptr=qo_indptr,\n        kv_len=kv_len,",
            "        row_indptr=qo_indptr,\n        kv_len=kv_len + 1,",
        ),
    ),
    (
        "pages_from_one",
        "storage_format",
        "pages_stay_in_bounds",
        "the cache has",
        ("build.py", "np.array([page for", "np.array([page + 9 for"),
    ),
    (
        "trusts_itself",
        "storage_format",
        "index_is_valid",
        "kv_offset",
        (
            "build.py",
            "kv_offset=np.zeros(len(kv_len), np.int32)",
            "kv_offset=np.full(len(kv_len), page_size, np.int32)",
        ),
        ("build.py", "levels=[level],\n    )", "levels=[level],\n    ).trusted()"),
    ),
    (
        "uses_up_its_input",
        "storage_format",
        "builds_are_repeatable",
        "changes pages",
        ("build.py", "    level = Level(", "    [own.append(0) for own in pages]\n    level = Level("),
    ),
    (
        "remembers",
        "storage_format",
        "builds_are_repeatable",
        "the second time",
        ("build.py", "def build_index", "SEEN = []\n\n\ndef build_index"),
        ("build.py", "page_begin=np.cumsum(counts) - counts", "page_begin=np.cumsum(counts) - counts + len(SEEN)"),
        ("build.py", "indices=np.array([", "indices=np.array([0] * len(SEEN) + [SEEN.append(1)][:0] + ["),
    ),
    (
        "no_checks",
        "storage_format",
        "contradictions_are_refused",
        "a negative kv_len",
        (
            "build.py",
            "batch_lengths(qo_lens, kv_lens)",
            "batch_lengths(np.maximum(qo_lens, 0), np.maximum(kv_lens, 0))",
        ),
    ),
    (
        "lists_alone",
        "storage_format",
        "lengths_come_in_any_integer_type",
        "lengths as int64",
        (
            "build.py",
            "    page_size = check",
            "    kv_lens = kv_lens if type(kv_lens) is list else -(-kv_lens // 2) * 2\n    page_size = check",
        ),
    ),
    (
        "another_single_form",
        "storage_format",
        "single_form_shows_the_same",
        "differ in slot",
        (
            "build.py",
            "    return ComposedIndex(",
            ANOTHER_SINGLE,
        ),
    ),
    (
        "forks_without_copying",
        "storage_format",
        "manager_keeps_its_books",
        "holds another sequence's key",
        ("plugin.py", "    example=", '    manager="@package@.manager:Pool",\n    example='),
        (
            "manager.py",
            "",
            POOL,
        ),
    ),
    (
        "no_example",
        "storage_format",
        "build_and_back",
        "gives no example",
        ("plugin.py", '    example="@package@.example:example",\n', ""),
    ),
    (
        "order_of_hashes",
        "storage_format",
        "hash_seeds_change_nothing",
        "PYTHONHASHSEED",
        (
            "example.py",
            "    pages = [[shuffled.pop()",
            "    shuffled.sort(key=lambda page: hash(str(page)))\n    pages = [[shuffled.pop()",
        ),
    ),
]

HEURISTICS = [
    (
        "pairs",
        "tile_heuristic",
        "choices_are_tiles_that_kernels_have",
        "neither None nor a TileChoice",
        ("choose.py", "    keys =", "    return 16, 64\n    keys ="),
    ),
    (
        "too_few_rows",
        "tile_heuristic",
        "choices_are_tiles_that_kernels_have",
        "query heads share a kv head",
        ("choose.py", "max(32, problem.group)", "32"),
    ),
    (
        "odd_tiles",
        "tile_heuristic",
        "choices_are_tiles_that_kernels_have",
        "chooses",
        ("choose.py", "short=Tile(16, keys)", "short=Tile(16, 100000)"),
    ),
    ("no_reason", "tile_heuristic", "choices_say_why", "does not say why", ("choose.py", "why=[", "why=[][:0] and [")),
    (
        "throws_dice",
        "tile_heuristic",
        "same_problem_same_choice",
        "chooses",
        ("choose.py", "    keys = 128 if", "    import random\n    keys = 128 if random.random() < 0.5 or"),
    ),
    (
        "knows_everything",
        "tile_heuristic",
        "families_it_does_not_know",
        "a_family_of_the_future",
        ("choose.py", 'if problem.family != "host":', "if False:"),
    ),
    (
        "no_opinion",
        "tile_heuristic",
        "has_an_opinion",
        "returns none for every",
        ("choose.py", "    keys =", "    return None\n    keys ="),
    ),
    (
        "raises",
        "tile_heuristic",
        "choices_say_why",
        "raises KeyError",
        ("choose.py", "    keys =", "    {}[problem.head_dim]\n    keys ="),
    ),
]


@pytest.mark.parametrize("wrong", FORMATS, ids=lambda wrong: wrong[0])
def test_formats(caught, wrong):
    caught(StorageFormatSuite, *wrong)


@pytest.mark.parametrize("wrong", HEURISTICS, ids=lambda wrong: wrong[0])
def test_heuristics(caught, wrong):
    caught(TileHeuristicSuite, *wrong)
