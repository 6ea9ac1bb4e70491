from attnloom.testing import TileHeuristicSuite
from attnloom_measured_tiles.choose import table


class TestMeasuredTiles(TileHeuristicSuite):
    tile_heuristic = "measured_tiles"


def test_lines_of_one_size_rise():
    for lines in table().values():
        for size in {line["bytes"] for line in lines}:
            dims = [line["head_dim"] for line in lines if line["bytes"] == size]
            assert dims == sorted(dims)
