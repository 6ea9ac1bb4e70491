"""Tile heuristics: asked by name or by preference; one that fails changes the time a kernel takes, nothing else."""

from __future__ import annotations

import logging

import pytest
from attnloom.errors import PluginError, UnsupportedError
from attnloom.plugins import PluginSet
from attnloom.spec import AttentionSpec
from attnloom.targets import HOST, CudaTarget
from attnloom.tile import Tile, TileChoice
from attnloom.tile_choice import choose_tiles

BODY = """
from attnloom.hookspecs import hookimpl
from attnloom.tile import Tile, TileChoice, TileHeuristic

@hookimpl
def attnloom_tile_heuristics():
    yield TileHeuristic(name="mine", choose="fake_fake_mine.plugin:choose", options={options})

def choose(problem, t_q=16):
    {action}
"""


def plugins_with(site, action, options=None, **config):
    site.add("mine", BODY.format(action=action, options=options or {}), provides=("tile_heuristic.mine",))
    return site.plugins(**config)


def spec(plugins, tile="mine", **fields):
    usual = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32"}
    return AttentionSpec(["causal"], plugins=plugins, tile=tile, **{**usual, **fields})


def chosen(plugins, tile="mine", target=HOST, **fields):
    return choose_tiles(spec(plugins, tile, **fields), target, frozenset(), plugins)


def test_by_name_and_with_options(site):
    plugins = plugins_with(site, "return TileChoice(short=Tile(t_q, 32), why=['measured'])", {"t_q": 8})
    choice = chosen(plugins)
    assert (choice.short, choice.tall, choice.why, choice.by) == (Tile(8, 32), None, ("measured",), "mine")


def test_auto_is_what_the_configuration_prefers(site):
    action = "return TileChoice(short=Tile(16, 32)) if problem.group == 4 else None"
    plugins = plugins_with(site, action, prefer={"tile": "mine"})
    assert chosen(plugins, "auto").by == "mine"
    assert plugins.provider("tile_heuristic", "auto").name == "mine"
    undecided = chosen(plugins, "auto", num_qo_heads=2)
    assert undecided.by == "auto" and "'mine' of mine (fake-mine 0.1.0) had no opinion" in undecided.why[0]


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("raise type('Skipped', (BaseException,), {})('why')", "Skipped: why"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("return (16, 64)", "which is no TileChoice"),
        ("return TileChoice(short=(16, 64))", "TileChoice.short must be a Tile, got (16, 64)"),
        ("return TileChoice(short=Tile(16, 64), tall='128x64')", "TileChoice.tall must be a Tile, got '128x64'"),
        (
            "return TileChoice(short=Tile(64, 64), tall=Tile(32, 64))",
            "tall tile's t_q 32 is less than the short tile's 64",
        ),
        ("return TileChoice(short=Tile(0, 64))", "t_q must be at least 1"),
        ("return TileChoice(short=Tile(16, 64, 'mma'))", "family 'mma'; on the cpu that is 'host'"),
        ("return TileChoice(short=Tile(2, 64))", "t_q 2, but 4 query heads share a kv head"),
        ("return TileChoice(short=Tile(16, 4096))", "too large"),
    ],
)
def test_one_that_fails_leaves_the_choice_to_the_core_and_is_told_once(site, caplog, action, reason):
    plugins = plugins_with(site, action)
    for _ in range(3):
        choice = chosen(plugins)
        assert choice.by == "auto" and choice.short == chosen(plugins, "auto").short
        assert "tile heuristic 'mine' of mine (fake-mine 0.1.0) failed: " in choice.why[0] and reason in choice.why[0]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and reason in record.getMessage()


@pytest.mark.parametrize("config", [{"strict": True}, {"enable": ("mine",)}])
def test_one_that_is_named_must_not_fail(site, config):
    with pytest.raises(PluginError, match="'mine' of mine .* failed: ZeroDivisionError"):
        chosen(plugins_with(site, "1 / 0", **config))


def test_a_missing_function_is_a_failure_of_the_heuristic(site, caplog):
    body = BODY.replace("plugin:choose", "plugin:gone").format(action="pass", options={})
    site.add("mine", body, provides=("tile_heuristic.mine",))
    assert "has no attribute 'gone'" in chosen(site.plugins()).why[0] and len(caplog.records) == 1


def test_on_another_target_too(site):
    plugins = plugins_with(site, "return TileChoice(short=Tile(16, 64))")
    choice = chosen(plugins, target=CudaTarget("sm_90a"), dtype="bfloat16")
    assert choice.by == "auto" and "family 'host'; on sm_90a" in choice.why[0]


def test_tiles_that_the_spec_gives_are_not_second_guessed(site):
    plugins = site.plugins()
    with pytest.raises(UnsupportedError, match="take a t_q of at least 4"):
        chosen(plugins, Tile(2, 16))
    assert chosen(plugins, Tile(4, 16)).by == ""


def test_explain_shows_it(site):
    import attnloom

    plugins = plugins_with(site, "1 / 0")
    found = attnloom.explain(spec(plugins), compile=False)
    assert found.data["tile"]["asked"] == "mine" and found.data["tile"]["by"] == "auto"
    assert "failed: ZeroDivisionError" in found.data["tiles"]["why"][0] and "failed: ZeroDivisionError" in str(found)


def test_a_group_that_no_tile_holds():
    spec = AttentionSpec([], 300, 1, 64)
    with pytest.raises(
        UnsupportedError, match="300 query heads share a kv head, but kernels of sm_80 hold at most 128"
    ):
        choose_tiles(spec, CudaTarget("sm_80"), (), PluginSet.default())


def test_choices_of_the_same_tiles_are_equal():
    tile = Tile(16, 32)
    assert TileChoice(short=tile, why="measured") == TileChoice(short=tile, by="mine")
    assert TileChoice(short=tile, why="measured").why == ("measured",)
    specs = [AttentionSpec([], 4, 2, 64, tile=TileChoice(short=tile, why=why)) for why in ("one", "two")]
    assert specs[0] == specs[1]
