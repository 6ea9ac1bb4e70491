"""Tile heuristics: asked by name or by preference; one that fails changes the time a kernel takes, nothing else."""

from __future__ import annotations

import itertools
import logging
import re

import pytest
from attnloom.builtin import CAUSAL
from attnloom.compose import compose
from attnloom.errors import PluginError, UnsupportedError
from attnloom.limits import UNLIMITED, Limits
from attnloom.plugins import PluginSet
from attnloom.spec import AttentionSpec
from attnloom.targets import HOST, CudaTarget
from attnloom.tile import Tile, TileChoice, TileHeuristic
from attnloom.tile_choice import choose_tiles
from attrs import evolve

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


def asked(monkeypatch, choice):
    """Let the rule of the plugin choose `choice`."""
    ask = TileHeuristic.ask
    monkeypatch.setattr(
        TileHeuristic, "ask", lambda self, problem: choice if self.name == "mine" else ask(self, problem)
    )


def spec(plugins, tile="mine", **fields):
    usual = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32"}
    return AttentionSpec(["causal"], plugins=plugins, tile=tile, **{**usual, **fields})


def chosen(plugins, tile="mine", target=HOST, functors=(), limits=UNLIMITED, **fields):
    return choose_tiles(spec(plugins, tile, **fields), target, frozenset(functors), plugins, limits)


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
        ("return TileChoice(short=Tile(16, 64, 'mma'))", "family 'mma' does not run on the cpu; there it is 'host'"),
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
    assert choice.by == "auto" and "family 'host' does not run on sm_90a" in choice.why[0]


HOPPER = CudaTarget("sm_90a")
TALL = Tile(128, 128, "wgmma")
BESIDE = TileChoice(short=Tile(16, 128, "mma"), tall=TALL)


@pytest.mark.parametrize(
    ("choice", "how", "reason"),
    [
        (BESIDE, {"functors": ["key_transform"]}, ""),
        (BESIDE, {"functors": ["key_transform"], "limits": Limits(requests=9)}, "here is maxima"),
        (BESIDE, {"functors": ["key_transform"], "batch_invariant": True}, "here is batch_invariant=True"),
        (TileChoice(short=TALL), {"functors": ["key_transform"]}, "here is no shorter tile"),
        (TileChoice(short=TALL), {"limits": Limits(levels=1)}, ""),
        (BESIDE, {"functors": ["value_transform"]}, "with a value_transform"),
        (BESIDE, {"kv_dtype": "float8_e4m3fn"}, "with kv_dtype float8_e4m3fn"),
        (BESIDE, {"head_dim": 256}, "for a head_dim up to 128"),
        (TileChoice(short=Tile(16, 64, "mma"), tall=Tile(64, 128, "wgmma")), {}, "has tiles of 128 x 64 and 128"),
        (TileChoice(short=Tile(24, 64, "mma")), {}, "t_q of (16, 32, 64, 128)"),
        (TileChoice(short=Tile(128, 128, "mma")), {"head_dim": 256}, "take a t_q of at most 64"),
    ],
)
def test_a_choice_that_a_wrapper_cannot_have_gives_way_and_a_given_one_does_not(
    site, caplog, monkeypatch, choice, how, reason
):
    plugins = plugins_with(site, "return None")
    asked(monkeypatch, choice)
    how = {"dtype": "bfloat16", "target": HOPPER, **how}
    found = [chosen(plugins, **how) for _ in range(2)]
    assert all(one.by == ("auto" if reason else "mine") for one in found)
    if not reason:
        assert found[0] == choice == chosen(plugins, choice, **how) and not caplog.records
        return
    assert found[0] == chosen(plugins, "auto", **how)
    (record,) = caplog.records
    for told in (record.getMessage(), found[0].why[0]):
        assert "tile heuristic 'mine' of mine (fake-mine 0.1.0) failed" in told and reason in told, told
        assert f"it chose {choice.shape}: " in told
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        chosen(plugins, choice, **how)


@pytest.mark.parametrize("variants", [["causal"], ["rope", "causal"], ["values"]], ids=str)
@pytest.mark.parametrize("limits", [UNLIMITED, Limits(qo_len=64), Limits(levels=1)], ids=str)
def test_whatever_is_chosen_there_is_a_kernel(variants, limits):
    """Every pair of tiles near those that kernels have: taken, and then a kernel's text can be made of it, or not."""
    values = evolve(CAUSAL, name="values", package="attnloom", functors={"value_transform"})
    sizes = [(t_q, t_kv, family) for t_q in (8, 16, 128) for t_kv in (64, 128) for family in ("mma", "wgmma", "host")]
    tiles = [Tile(*size) for size in sizes]
    taken = set()
    for short, tall in itertools.product(tiles, [None, *tiles]):
        if tall is not None and tall.t_q < short.t_q:
            continue
        choice = TileChoice(short=short, tall=tall)
        for fields in ({}, {"batch_invariant": True}, {"kv_dtype": "float8_e5m2"}, {"head_dim": 192}):
            made = AttentionSpec(
                [values if name == "values" else name for name in variants],
                **{"num_qo_heads": 16, "num_kv_heads": 1, "head_dim": 128, "dtype": "bfloat16", **fields},
            )
            composition = compose(made.variants, spec=made, plugins=made.plugin_set)
            try:
                given = choose_tiles(evolve(made, tile=choice), HOPPER, composition.functors, made.plugin_set, limits)
            except (UnsupportedError, ValueError):
                continue
            taken.add(choice)
            assert HOPPER.source(made, composition, given)
    assert taken and (TileChoice(short=TALL) in taken) == (variants == ["causal"])


@pytest.mark.parametrize("fields", [{"dtype": "float32"}, {"head_dim": 33}, {"num_qo_heads": 300, "num_kv_heads": 1}])
@pytest.mark.parametrize("config", [{}, {"strict": True}, {"enable": ("mine",)}])
def test_a_plugin_is_not_blamed_for_what_no_kernel_computes(site, caplog, config, fields):
    plugins = plugins_with(site, "return TileChoice(short=Tile(16, 64, 'mma'))", **config)
    with pytest.raises(UnsupportedError, match="float32|33|300"):
        chosen(plugins, target=HOPPER, **{"dtype": "bfloat16", **fields})
    assert not caplog.records


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
