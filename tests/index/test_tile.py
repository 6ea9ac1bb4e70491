"""Tiles of sizes that are none."""

import pytest
from attnloom.errors import UnsupportedError
from attnloom.tile import Tile


@pytest.mark.parametrize("size", [0, -16, 1.5, True, None, "16"])
def test_sizes_that_are_none(size):
    for arguments, name in (((size, 16), "t_q"), ((16, size), "t_kv")):
        with pytest.raises(UnsupportedError, match=f"Tile.{name} must be .*got {size!r}"):
            Tile(*arguments)


def test_a_family_has_a_name():
    with pytest.raises(UnsupportedError, match="Tile.family .*got 3"):
        Tile(16, 16, 3)
