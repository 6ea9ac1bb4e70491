from __future__ import annotations

import json
import subprocess
import sys

import attnloom
import attrs
import pytest
from attnloom.builtin import CAUSAL


def test_data_and_text(bench):
    spec = bench.spec(["rope", "cap=soft_cap", "causal"], head_dim=64, tile="auto", params={"cap.cap": 30.0})
    found = attnloom.explain(spec)
    data = found.data
    assert [member["alias"] for member in data["variants"]] == ["rope", "cap", "causal"]
    assert [member["distribution"] for member in data["variants"]] == ["attnloom-rope", "attnloom-soft-cap", "attnloom"]
    assert data["functors"]["logits_transform"] == ["cap"]
    values = {row["name"]: row for row in data["params"]}
    assert values["cap.cap"]["value"] == 30.0 and values["cap.cap"]["set"] == "run time"
    assert values["rope.rotary_dim"]["set"] == "static"
    assert data["tiles"]["short"]["t_q"] >= 2 and data["tiles"]["why"] and data["tile"]["distribution"] == "attnloom"
    assert len(data["kernel"]["key"]) == 64 and "namespace attnloom::generated" in data["kernel"]["source"]
    assert attnloom.explain(spec).data["kernel"]["cached"]
    json.dumps(data)
    text = str(found)
    for word in ("attnloom-soft-cap", "cap = soft_cap", "cap.cap = 30.0", "cache key", "kernel.cpp"):
        assert word in text


def test_who_supplies_what_and_what_is_seen(bench):
    variants, params = ["causal", "near=sliding_window"], {"near.left": 15}
    spec = bench.spec(variants, params=params)
    data = attnloom.explain(spec, compile=False, qo_len=8, kv_len=100).data
    (one, other) = data["suppliers"]["kv_range"]
    assert (one["plugin"], one["distribution"]) == ("core", "attnloom")
    assert (other["alias"], other["variant"], other["version"]) == ("near", "sliding_window", "0.1.0")
    rows = data["intervals"]["rows"]
    assert [(row["q_pos"], row["visible"]) for row in rows] == [
        (92, [(77, 93)]), (96, [(81, 97)]), (99, [(84, 100)])
    ]  # fmt: skip
    assert rows[0]["variants"] == {"causal": [(0, 93)], "near": [(77, 100)]} and rows[0]["heads"] == [0, 1, 2, 3]
    assert [row["from"] for row in data["params"]] == ["the spec", "default"]
    text = str(attnloom.explain(spec, compile=False, qo_len=8, kv_len=100))
    for word in (
        "kv_range: causal (attnloom 0.1.0) & near (attnloom-sliding-window 0.1.0)",
        "q_pos 92: [77, 93), 16 keys  (causal [0, 93) & near [77, 100))",
        "tiles, by ",
    ):
        assert word in text, text
    assert attnloom.explain(bench.spec(["soft_cap"]), compile=False).data["intervals"] is None


def test_a_hit_tells_what_the_compile_took(bench):
    spec = bench.spec(["causal"])
    attnloom.explain(spec)
    found = attnloom.explain(spec)
    assert found.data["kernel"]["built"]["seconds"] > 0 and " took " in str(found)


def test_without_compiling(bench, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    data = attnloom.explain(bench.spec(["sinks"]), compile=False).data
    assert "key" not in data["kernel"]
    assert "sinks.sinks" in data["params"][0]["error"]
    params = {"sliding_window.left": 10}
    rows = attnloom.explain(bench.spec(["sliding_window", "sinks"], params=params), compile=False).data["params"]
    assert {row["name"]: (row["value"], "error" in row) for row in rows} == {
        "sliding_window.left": (10, False),
        "sliding_window.right": (-1, False),
        "sinks.sinks": (None, True),
    }
    given = attnloom.explain(
        bench.spec([attrs.evolve(CAUSAL, package="attnloom")], tile=attnloom.Tile(16, 16)), compile=False
    )
    assert given.data["tile"]["chosen_by"] == "the spec" and "given as an object" in str(given)


def test_a_second_kernel():
    spec = attnloom.AttentionSpec(["causal"], num_qo_heads=32, num_kv_heads=8, head_dim=128)
    found = attnloom.explain(spec, arch="sm_90a", compile=False)
    second = found.data["long"]
    assert second == {"t_q": 128, "t_kv": 128, "family": "wgmma", "for": second["for"]}
    assert "128 keys or more" in second["for"] and json.loads(json.dumps(found.data))["long"] == second
    assert "a second kernel, whose tall tile is 128 query rows x 128 keys, wgmma, runs batches of" in str(found)
    assert "\nkernel cuda_causal_bfloat16_bfloat16_d128 (mma 16x64 + wgmma 128x64)" in str(found)


@pytest.mark.parametrize("how", [{}, {"arch": "sm_80"}, {"max_qo_len": 4096}, {"max_kv_len": 4096}], ids=str)
def test_one_kernel(how):
    spec = attnloom.AttentionSpec(["causal"], num_qo_heads=32, num_kv_heads=8, head_dim=128)
    found = attnloom.explain(spec, compile=False, **({"arch": "sm_90a", **how} if how else {}))
    assert found.data["long"] is None and "second kernel" not in str(found)


@pytest.mark.parametrize("form", ["text", "json"])
def test_command(form):
    command = [sys.executable, "-m", "attnloom", "explain", "--variants", "causal,soft-cap", "--head-dim", "64"]
    command += ["--num-qo-heads", "8", "--num-kv-heads", "2", "--dtype", "float32", "--param", "soft_cap.cap=20"]
    done = subprocess.run(
        [*command, "--no-compile", *(["--json"] if form == "json" else [])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if form == "json":
        assert json.loads(done.stdout)["params"][0] == {
            **json.loads(done.stdout)["params"][0], "name": "soft_cap.cap", "value": 20
        }  # fmt: skip
    else:
        assert "soft_cap.cap = 20" in done.stdout


def test_command_refuses_what_the_library_refuses():
    command = [sys.executable, "-m", "attnloom", "explain", "--variants", "soft_cpa", "--no-compile"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "soft_cap" in done.stderr and "Traceback" not in done.stderr
