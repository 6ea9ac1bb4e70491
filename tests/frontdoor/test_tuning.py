"""Tiles that are measured: what `attnloom tune` keeps, and what a table, right or not, does to a kernel."""

from __future__ import annotations

import json
import logging
import os
from types import SimpleNamespace

import attnloom
import pytest
import torch
from attnloom import tile_choice, tile_table, tuning
from attnloom.cli import main
from attnloom.engines import long
from attnloom.errors import ConfigError, ParamError, PlanError, UnsupportedError
from attnloom.kernel import describe
from attnloom.limits import Limits
from attnloom.targets import HOST, CudaTarget
from attnloom.tile import Tile, TileChoice
from attnloom.tile_table import Entry, problem_key
from attnloom.tuning import Batch, Candidate, fastest, tile_choices

RULE = {"decode 2x64": 20.0}
DIMS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 32}


@pytest.fixture
def table(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "tiles.json"
    monkeypatch.setenv(tile_table.VARIABLE, str(path))
    return path


def spec_of(**fields):
    return attnloom.AttentionSpec(["causal"], **{**DIMS, "dtype": "float32", **fields})


def problem_of(spec, target=HOST):
    from attnloom.tile_choice import problem_of

    return problem_of(spec, target, ["kv_range"])


def entry(spec, target=HOST, short=(16, 32, "host"), tall=(32, 32, "host"), **changes):
    fields = {
        "problem": problem_key(problem_of(spec, target)),
        "short": Tile(*short),
        "tall": Tile(*tall),
        "microseconds": {"decode 2x64": 12.5},
        "rule": RULE,
        "date": "2026-11-30",
        "version": attnloom.__version__,
        **changes,
    }
    return Entry(**fields)


def tiles_of(spec, target=HOST, **limits):
    return describe(spec, target, Limits(**limits))[1]


def test_a_table_is_measured_and_read(table, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "_HOST_ROWS", (32,))
    monkeypatch.setattr(tuning, "_HOST_KEYS", (32, 64))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in DIMS.items()]
    batches = ["--decode", "2x64", "--decode=1x20", "--prefill", "2x30"]
    asked = ["tune", *options, "--dtype=float32", "--device=cpu", "--repeats=3", *batches]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["table"] == str(table)
    candidates = found["candidates"]
    assert [one["tiles"] for one in candidates] == ["host 16x128 + 64x128", "host 16x32 + 32x32", "host 16x64 + 32x64"]
    assert all(list(one["microseconds"]) == ["decode 2x64", "decode 1x20", "prefill 2x30"] for one in candidates)
    (best,) = [one for one in candidates if one["fastest"]]
    assert found["entry"]["microseconds"] == best["microseconds"] and not any(one["fault"] for one in candidates)
    (kept,) = tile_table.read(table)
    chosen = tiles_of(spec_of())
    assert (chosen.short, chosen.tall, chosen.by) == (kept.short, kept.tall, "auto")
    assert f"measured on {HOST.device_name or 'cpu'} on {kept.date}, in {table}: decode 2x64 " in chosen.why[0]
    assert main(asked) == 0
    told = capsys.readouterr()
    assert "(rule)" in told.out and f"kept in {table}" in told.out and "compiling 3 kernels" in told.err
    assert len(tile_table.read(table)) == 1


def test_what_is_explained(table):
    tile_table.add(table, entry(spec_of()))
    text = str(attnloom.explain(spec_of(), compile=False))
    assert f"on 2026-11-30, in {table}: decode 2x64 12.5 us" in text
    assert "the tiles of the core's rule took decode 2x64 20.0 us" in text


def test_the_next_wrapper_takes_what_was_measured_since(table):
    before = attnloom.AttentionWrapper(spec_of())
    for tall in (32, 64):
        tile_table.add(table, entry(spec_of(), tall=(tall, 32, "host")))
        after = attnloom.AttentionWrapper(spec_of())
        assert after.kernel.tiles.tall == Tile(tall, 32) != before.kernel.tiles.tall
        assert str(after.kernel.artifact.path) in str(attnloom.explain(spec_of()))
    table.unlink()
    assert attnloom.AttentionWrapper(spec_of()).kernel is before.kernel


def test_an_entry_is_of_one_problem(table):
    spec = spec_of()
    tile_table.add(table, entry(spec))
    assert tiles_of(spec).short == Tile(16, 32)
    assert tiles_of(spec_of(num_qo_heads=8, num_kv_heads=4)).short == Tile(16, 32), "the group counts, not the heads"
    for other in (spec_of(head_dim=64), spec_of(num_qo_heads=8), spec_of(kv_dtype="bfloat16")):
        assert tiles_of(other).short == Tile(16, 128)
    tile_table.add(table, entry(spec, tall=(64, 32, "host")))
    tile_table.add(table, entry(spec_of(head_dim=64)))
    assert tiles_of(spec).tall == Tile(64, 32) and len(tile_table.read(table)) == 2
    assert tiles_of(spec, qo_len=3).tall is None


def test_a_table_of_a_gpu_needs_none(table):
    spec, here = spec_of(dtype="bfloat16", head_dim=64), CudaTarget("sm_90a", "NVIDIA H200")
    tile_table.add(table, entry(spec, here, (16, 32, "mma"), (64, 32, "mma")))
    assert tiles_of(spec, here).tall == tiles_of(spec, CudaTarget("sm_90a")).tall == Tile(64, 32, "mma")
    rule = tiles_of(spec, CudaTarget("sm_80")).tall
    assert tiles_of(spec, CudaTarget("sm_90a", "NVIDIA H100")).tall != Tile(64, 32, "mma") != rule


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is no tile table"),
        ("[1]", "is no tile table"),
        ('{"format": 9, "entries": []}', "has format 9, this attnloom reads 1"),
        ('{"format": 1, "entries": [{"problem": {}}]}', "is no tile table"),
        (None, "which cannot be read: No such file"),
        ("a folder", "cannot be read: Is a directory"),
    ],
)
def test_a_broken_table_is_warned_of_once(table, caplog, text, reason):
    if text == "a folder":
        table.mkdir(parents=True)
    elif text is not None:
        table.parent.mkdir()
        table.write_text(text)
    spec = spec_of(plugins=attnloom.plugins.PluginSet(attnloom.plugins.Config()))
    with caplog.at_level(logging.WARNING):
        choices = [tiles_of(spec) for _ in range(2)]
    assert all(choice.short == Tile(16, 128) for choice in choices)
    assert "the tile table is ignored" in choices[0].why[0] and reason in choices[0].why[0]
    assert len([record for record in caplog.records if reason in record.getMessage()]) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": "0.0.9"}, "was measured with attnloom 0.0.9"),
        ({"short": (16, 32, "mma")}, "tile family 'mma' does not run on the cpu"),
        ({"tall": (4096, 32, "host")}, "is too large"),
        ({"short": (1, 32, "host"), "tall": (1, 32, "host")}, "the largest tile has t_q 1"),
        ({"short": (64, 32, "host")}, "the tall tile's t_q 32 is less than the short tile's 64"),
    ],
)
def test_an_entry_that_no_kernel_can_use(table, changes, reason):
    tile_table.add(table, entry(spec_of(), **changes))
    choice = tiles_of(spec_of())
    assert choice.short == Tile(16, 128) and reason in choice.why[0]


@pytest.mark.parametrize(
    "broken",
    [
        {"short": "16x32"},
        {"short": None},
        {"short": [16, 32]},
        {"tall": "none"},
        {"tall": {"t_q": 32, "t_kv": -1}},
        {"microseconds": {"decode 2x64": None}},
        {"microseconds": {"decode 2x64": "12 us"}},
        {"rule": 20.0},
        {"rule": {"decode 2x64": 10**400}},
        {"problem": "any"},
        {"date": 5},
        {"version": None},
        {"version": ...},
        {"measured": True},
    ],
    ids=str,
)
def test_an_entry_that_is_none(table, broken, capsys):
    """Whatever an entry holds in place of what it should, the rule decides, and the doctor says why."""
    tile_table.add(table, entry(spec_of()))
    data = json.loads(table.read_text())
    changed = {**data["entries"][0], **broken}
    data["entries"] = [{name: value for name, value in changed.items() if value is not ...}]
    table.write_text(json.dumps(data))
    choice = tiles_of(spec_of())
    assert choice.short == Tile(16, 128) and "is no tile table" in choice.why[0]
    assert main(["doctor", "--json"]) == 1
    assert any("is no tile table" in problem for problem in json.loads(capsys.readouterr().out)["problems"])


def test_processes_take_turns_at_a_table(table):
    heads = range(8, 136, 8)
    writers = []
    for head_dim in heads:
        if (child := os.fork()) == 0:
            status = 1
            try:
                tile_table.add(table, entry(spec_of(head_dim=head_dim)))
                status = 0
            finally:
                os._exit(status)
        writers.append(child)
    assert [os.waitpid(child, 0)[1] for child in writers] == [0] * len(heads)
    assert sorted(one.problem["head_dim"] for one in tile_table.read(table)) == list(heads)


@pytest.mark.parametrize("fault", ["a folder", "no table", "below a file", "of nobody"])
def test_a_table_that_cannot_be_added_to_stops_before_measuring(table, monkeypatch, capsys, fault):
    table.parent.mkdir()
    place = {"below a file": table.parent / "file" / "tiles.json", "of nobody": "/proc/nobody/tiles.json"}
    monkeypatch.setenv(tile_table.VARIABLE, str(place.get(fault, table)))
    (table.parent / "file").write_text("")
    if fault == "a folder":
        table.mkdir()
    elif fault == "no table":
        table.write_text("no")
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: pytest.fail("it measured"))
    assert main(["tune", "--device=cpu"]) == 1
    told = capsys.readouterr().err
    assert "cannot be" in told or "is no tile table" in told


@pytest.mark.parametrize(
    ("variants", "params", "told"),
    [
        (["sinks"], {}, "sinks.sink"),
        (["soft_cap"], {"soft_cap.cap": -3.0}, "must be positive"),
        (["causal"], {"cap": 1.0}, "cap"),
    ],
)
def test_parameters_that_are_wrong_stop_before_compiling(monkeypatch, variants, params, told):
    monkeypatch.setattr(tuning, "_compile", lambda *_: pytest.fail("it compiled"))
    spec = attnloom.AttentionSpec(variants, **DIMS, dtype="float32", params=params)
    with pytest.raises(ParamError, match=told):
        tuning.tune(spec, "cpu")


def test_a_rule_that_cannot_be_measured_is_told(monkeypatch):
    def fail(*_):
        raise RuntimeError("out of luck\nat line 3")

    monkeypatch.setattr(tuning._Bench, "_open", fail)
    bench = tuning._Bench(spec_of(), torch.device("cpu"), tuning.Batch("decode", 1, 9), ())
    with pytest.raises(UnsupportedError, match="core's rule cannot be measured: out of luck$"):
        bench.measure([Candidate(TileChoice(short=Tile(16, 32)))], 1)


def test_a_batch_that_memory_does_not_hold(monkeypatch):
    monkeypatch.setattr(tuning, "_compile", lambda *_: None)
    with pytest.raises(UnsupportedError, match="decode 900000x900000 does not fit cpu: "):
        tuning.tune(spec_of(), "cpu", [tuning.Batch("decode", 900000, 900000)])


def test_a_spec_that_no_kernel_computes():
    for spec, target in (
        (spec_of(head_dim=2000), HOST),
        (spec_of(dtype="bfloat16", head_dim=33), CudaTarget("sm_90a")),
    ):
        with pytest.raises((UnsupportedError, ValueError), match=f"head_dim.*{spec.head_dim}"):
            list(tile_choices(spec, target, problem_of(spec, target)))


def test_a_device_that_is_none(table):
    with pytest.raises(UnsupportedError, match="device 'gpu': kernels run on 'cpu' and on 'cuda'"):
        tuning.tune(spec_of(), "gpu")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tiles_of_another_result_are_out_of_the_question(monkeypatch, dtype):
    right, wrong = (TileChoice(short=Tile(16, t_kv), tall=Tile(32, t_kv)) for t_kv in (32, 64))
    run = tuning._Bench._run

    def run_wrong(bench, wrapper):
        run(bench, wrapper)
        if wrapper.spec.tile == wrong:
            bench._out *= 1.5

    monkeypatch.setattr(tuning._Bench, "_run", run_wrong)
    candidates = [Candidate(right), Candidate(wrong), Candidate(right)]
    tuning._Bench(spec_of(dtype=dtype), torch.device("cpu"), tuning.Batch("decode", 2, 40), ()).measure(candidates, 1)
    assert [bool(one.fault) for one in candidates] == [False, True, False]
    assert "another result" in candidates[1].fault


def test_a_busy_cpu_decides_nothing(monkeypatch):
    took = iter([900.0, 12.0, 800.0, 20.0, 700.0, 950.0])  # of two candidates, whose turns come in both orders
    monkeypatch.setattr(tuning._Bench, "_time", lambda *_: next(took))
    candidates = [Candidate(TileChoice(short=Tile(16, t_kv), tall=Tile(32, t_kv))) for t_kv in (32, 64)]
    tuning._Bench(spec_of(), torch.device("cpu"), tuning.Batch("decode", 2, 40), ()).measure(candidates, 3)
    assert [one.microseconds["decode 2x40"] for one in candidates] == [20.0, 12.0]


def test_where_the_table_is(monkeypatch, tmp_path):
    monkeypatch.setenv(tile_table.VARIABLE, " ")
    assert tile_table.table_path() is None
    monkeypatch.setenv(tile_table.VARIABLE, "~nobody_at_all/tiles.json")
    assert "No such file" in tiles_of(spec_of()).why[0]
    monkeypatch.setenv(tile_table.VARIABLE, "")
    assert main(["tune", "--device=cpu"]) == 1
    monkeypatch.delenv(tile_table.VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert tile_table.table_path() == tmp_path / "attnloom" / "tiles.json"
    assert tile_table.choose(problem_of(spec_of())) is None
    with pytest.raises(ConfigError, match="is no tile table"):
        os.makedirs(tmp_path / "attnloom")
        tile_table.table_path().write_text("no")
        tile_table.add(tile_table.table_path(), entry(spec_of()))


def test_the_doctor_looks_at_the_table(table, monkeypatch, capsys):
    def told():
        status = main(["doctor", "--json"])
        found = json.loads(capsys.readouterr().out)
        return (
            status,
            found["tile table"],
            [problem for problem in found["problems"] if "tile" in problem or "tune" in problem],
        )

    missing = told()
    assert missing[0] == 1 and "No such file" in missing[2][0]
    tile_table.add(table, entry(spec_of()))
    assert told()[1:] == (f"{table} (1 problem(s))", [])
    tile_table.add(table, entry(spec_of(head_dim=64), version="0.0.9"))
    assert "1 of 2 problems" in told()[2][0] and "measured with attnloom 0.0.9" in told()[2][0]
    monkeypatch.setenv(tile_table.VARIABLE, "")
    assert "none is read" in told()[1]
    monkeypatch.delenv(tile_table.VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(table.parent))
    assert "none yet" in told()[1] and not told()[2]


def test_tiles_change_no_result(table, monkeypatch):
    rng = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 40, heads, 32, generator=rng) for heads in (4, 2, 2))
    monkeypatch.setenv(tile_table.VARIABLE, "")
    expected = attnloom.attention(q, k, v)
    given = TileChoice(short=Tile(16, 32), tall=Tile(32, 32))
    torch.testing.assert_close(attnloom.attention(q, k, v, tile=given), expected, rtol=1e-5, atol=1e-6)


def test_candidates_are_what_kernels_have():
    spec = spec_of(dtype="bfloat16", head_dim=128, num_qo_heads=16)
    for target in (HOST, CudaTarget("sm_80"), CudaTarget("sm_89"), CudaTarget("sm_90a")):
        found = list(tile_choices(spec, target, problem_of(spec, target)))
        rule = tiles_of(spec, target)
        assert (found[0].short, found[0].tall) == (rule.short, rule.tall)
        assert len(found) > 5 and len(found) == len(set(found))
        for choice in found:
            target.config(spec, choice)
    with pytest.raises((UnsupportedError, ValueError)):
        target.config(spec, TileChoice(short=Tile(16, 32, "mma"), tall=Tile(512, 32, "mma")))


@pytest.mark.parametrize(
    ("variants", "fields", "has"),
    [
        (["causal"], {}, True),
        (["alibi"], {"head_dim": 64}, True),
        (["rope", "causal"], {}, False),
        (["causal"], {"kv_dtype": "float8_e4m3fn"}, False),
        (["causal"], {"head_dim": 256}, False),
    ],
)
def test_tall_tiles_that_every_wrapper_can_have(variants, fields, has):
    """A table serves wrappers with maxima too, in which no keys are transformed ahead."""
    spec = attnloom.AttentionSpec(variants, 8, 2, **{"head_dim": 128, "dtype": "bfloat16", **fields})
    hopper = CudaTarget("sm_90a")
    problem = tile_choice.problem_of(spec, hopper, describe(spec, hopper)[0].functors)
    assert (long.TALL in [choice.tall for choice in tile_choices(spec, hopper, problem)]) == has


@pytest.mark.parametrize(
    ("kind", "keys", "has"), [("prefill", 600, True), ("prefill", 200, False), ("decode", 600, False)]
)
def test_a_batch_is_measured_on_the_kernel_that_it_will_run_on(monkeypatch, kind, keys, has):
    """On Hopper the core's tiles stand for two kernels."""
    spec = spec_of(dtype="bfloat16", head_dim=64)
    bench = tuning._Bench(spec, torch.device("cpu"), Batch(kind, 1, keys), {"kv_range"})
    rule, other = list(tile_choices(spec, CudaTarget("sm_90a"), problem_of(spec, CudaTarget("sm_90a"))))[:2]
    opened = []
    wrapper = SimpleNamespace(plan=lambda _: None)
    monkeypatch.setattr("attnloom.wrapper.AttentionWrapper", lambda spec, _: opened.append(spec.tile.tall) or wrapper)
    bench._open(rule)
    bench._open(other)
    assert opened == [long.TALL if has else Tile(128, 64, "wgmma"), other.tall]


def test_only_what_is_clearly_faster_is_chosen():
    def candidate(us, fault=""):
        return Candidate(TileChoice(short=Tile(16, 16)), {"decode 1x9": us, "prefill 1x9": us / 2}, fault)

    rule, near, fast, wrong = candidate(10.0), candidate(9.95), candidate(8.0), candidate(1.0, "another result")
    assert fastest([rule, near]) is rule
    assert fastest([rule, wrong, fast, near]) is fast
    with pytest.raises(UnsupportedError, match="cannot be measured: another result"):
        fastest([wrong, fast])


@pytest.mark.parametrize("text", ["16", "x9", "3x", "0x5", "ax3", "2x-1"])
def test_batches_that_are_none(table, text, capsys):
    assert main(["tune", "--decode", text, "--device=cpu"]) == 2
    assert "write --decode REQUESTSxKEYS" in capsys.readouterr().err


@pytest.mark.parametrize("fields", [("verify", 1, 8), ("decode", 0, 8), ("prefill", 2, -1), ("decode", 2.0, 8)])
def test_batches_of_python_that_are_none(fields):
    with pytest.raises((ValueError, TypeError)):
        Batch(*fields)


def test_runs_of_which_there_are_none():
    with pytest.raises(PlanError, match="repeats must be an integer of at least 1, got 0"):
        tuning.tune(spec_of(), "cpu", repeats=0)
