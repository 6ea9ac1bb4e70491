"""The rule of `measured_tiles`: the line of the table that fits."""

import functools
import tomllib
from importlib.resources import files

from attnloom.tile import Tile, TileChoice

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


@functools.cache
def table() -> dict:
    """The measurements, by kernel family."""
    return tomllib.loads(files(__package__).joinpath("table.toml").read_text(encoding="utf-8"))


def choose(problem):
    """The tiles of the first line that holds the problem's heads; none where nothing was measured."""
    widest = max(problem.head_dim, problem.head_dim_v)
    for line in table().get(problem.family, ()):
        if line["bytes"] == BYTES.get(problem.kv_dtype) and widest <= line["head_dim"]:
            short, tall = line["rows"]
            rows = max(tall, problem.group)
            why = [
                f"measured for {problem.kv_dtype} up to head_dim {line['head_dim']}: {line['keys']} keys, {tall} rows"
            ]
            if rows > tall:
                why.append(f"a query token of this group has {rows} rows, which one tile must hold")
            return TileChoice(short=Tile(short, line["keys"]), tall=Tile(rows, line["keys"]), why=why)
    return None
