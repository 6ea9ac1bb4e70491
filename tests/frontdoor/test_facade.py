from __future__ import annotations

import json
import subprocess
import sys

import attnloom
import pytest

PROBE = """
import json, sys, time
start = time.perf_counter()
import attnloom
seconds = time.perf_counter() - start
heavy = [name for name in ("torch", "numpy", "tvm_ffi", "pluggy", "typer") if name in sys.modules]
attnloom.Variant, attnloom.Tile, attnloom.ComposedIndex, attnloom.AttentionSpec, attnloom.RunError, attnloom.hookimpl
late = [name for name in ("torch", "numpy") if name in sys.modules]
attnloom.AttentionSpec(["causal"], 8, 2, 64)
spec = [name for name in ("torch", "numpy") if name in sys.modules]
print(json.dumps({"seconds": seconds, "heavy": heavy, "late": late, "spec": spec}))
"""


def test_import_is_light():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["heavy"] == [] and found["late"] == [] and found["spec"] == []
    assert found["seconds"] < 0.5


@pytest.mark.parametrize("name", [name for name in attnloom.__all__ if name != "__version__"])
def test_every_name_resolves(name):
    assert name in dir(attnloom)
    assert callable(getattr(attnloom, name))


def test_plugins_is_a_package_and_a_function():
    import attnloom.plugins

    names = {record.name for record in attnloom.plugins()}
    assert attnloom.plugins.PluginSet and "soft_cap" in names


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        attnloom.atention  # noqa: B018


def test_storage_format_is_shared_and_spelt_either_way():
    assert attnloom.storage_format("page-table") is attnloom.storage_format("page_table")
    with pytest.raises(attnloom.UnknownNameError, match="page_table"):
        attnloom.storage_format("page_tabel")
