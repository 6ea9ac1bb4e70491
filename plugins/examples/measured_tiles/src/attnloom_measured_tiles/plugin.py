"""The `measured_tiles` heuristic."""

from attnloom import hookimpl
from attnloom.tile import TileHeuristic

MEASURED_TILES = TileHeuristic(
    name="measured_tiles",
    choose="attnloom_measured_tiles.choose:choose",
    doc="The fastest tiles of a table of measurements, by dtype and head dimension.",
)


@hookimpl
def attnloom_tile_heuristics():
    """Tiles from a table."""
    return [MEASURED_TILES]
