"""What tests of kernels on the host and on a CUDA device share."""

from __future__ import annotations

import importlib
import os
import sys

import attnloom
import pytest

os.environ["ATTNLOOM_TILE_TABLE"] = ""  # what the user has measured must not decide what is tested


@pytest.fixture(scope="session")
def radix_index():
    """`radix_index(rng, requests, page_size=16, roots=(4, 2, 0))`: a `radix_tree` index, and its pages' number."""
    return _radix_index


def _radix_index(rng, requests, page_size=16, roots=(4, 2, 0)):
    """`requests` are (which prefix, query tokens, own keys); prefixes are `roots` full pages, prefix 1 continues 0."""
    counts = [-(-own // page_size) for _, _, own in requests]
    pages = rng.permutation(sum(roots) + sum(counts)).tolist()
    prefixes = [[pages.pop() for _ in range(size)] for size in roots]
    prefixes[1] = prefixes[0] + prefixes[1]
    tables = [
        prefixes[root] + [pages.pop() for _ in range(count)] for (root, *_), count in zip(requests, counts, strict=True)
    ]
    kv_lens = [len(prefixes[root]) * page_size + own for root, _, own in requests]
    index = attnloom.storage_format("radix_tree").build_index(
        [qo for _, qo, _ in requests], kv_lens, page_size, block_tables=tables
    )
    return index, sum(roots) + sum(counts)


@pytest.fixture(scope="module")
def make_package(tmp_path_factory):
    """`make_package(name, {file: text})`: a Python package that can be imported while the tests of a module run."""
    folder = tmp_path_factory.mktemp("packages")

    def make(name, files):
        (folder / name).mkdir()
        for file, text in {"__init__.py": "", **files}.items():
            (folder / name / file).write_text(text)
        importlib.invalidate_caches()
        return name

    sys.path.insert(0, str(folder))
    yield make
    sys.path.remove(str(folder))
