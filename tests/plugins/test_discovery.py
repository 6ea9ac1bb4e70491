"""Metadata first: what is installed, and what may be used, without importing anything."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from attnloom.errors import PluginError, UnavailableError, UnknownNameError
from attnloom.plugins import Config, PluginSet, discovery
from attnloom.plugins.naming import NAME, canonicalize_name, plugin_key
from attnloom.plugins.record import PluginRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from importlib_metadata import EntryPoint

EXPLODES = "raise ZeroDivisionError('imported')"


def test_found_with_distribution_version_and_contributions(site):
    site.add("windowed", version="1.2.3")
    (record,) = site.plugins().records()[1:]
    assert (record.name, record.distribution, record.version) == ("windowed", "fake-windowed", "1.2.3")
    assert record.provides == (("variant", "windowed"),)
    assert (record.module, record.package) == ("fake_fake_windowed.plugin", "fake_fake_windowed")
    assert record.state == "found"


def test_listing_and_names_import_nothing(site):
    site.add("windowed", EXPLODES)
    plugins = site.plugins()
    assert plugins.names("variant") == ("causal", "windowed")
    assert plugins.provider("variant", "windowed").name == "windowed"
    assert not [name for name in sys.modules if name.startswith("fake_")]


def test_metadata_is_scanned_once(site, monkeypatch):
    site.add("windowed")
    calls = []
    scan = discovery.scan
    monkeypatch.setattr(discovery, "scan", lambda *args, **kwargs: calls.append(1) or scan(*args, **kwargs))
    plugins = site.plugins()
    plugins.records(), plugins.variant("windowed"), plugins.names("variant"), plugins.records()
    assert len(calls) == 1


# gptme #3193: an allow-list that was applied after the import
@pytest.mark.parametrize("disable", ["windowed", "fake-windowed", "fake_windowed", "Windowed"])
def test_a_disabled_plugin_is_never_imported(site, disable):
    site.add("windowed", EXPLODES)
    config = Config.from_mapping({"plugins": {"disable": [disable]}}, "here.toml")
    plugins = PluginSet.from_config(config, paths=[str(site.path)])
    # conda #16656: it stays in the list, with the reason
    (record,) = plugins.records()[1:]
    assert record.state == "disabled" and "here.toml" in record.reason
    with pytest.raises(UnknownNameError, match=r"windowed \(fake-windowed 0.1.0\) is disabled: .*here.toml"):
        plugins.variant("windowed")
    assert "fake_fake_windowed" not in sys.modules


# tox #3593, airflow #36773: the version is checked before the import
@pytest.mark.parametrize("requirement", ["attnloom>=99", "Attnloom <0.0.1", "attnloom~=7.1; python_version >= '3'"])
def test_a_plugin_for_another_attnloom_is_never_imported(site, caplog, requirement):
    site.add("windowed", EXPLODES, requires=(requirement,))
    site.add("alike")
    plugins = site.plugins()
    assert plugins.variant("alike").name == "alike"
    with pytest.raises(UnavailableError, match="it needs attnloom.*, and this is attnloom 0"):
        plugins.variant("windowed")
    assert sum("incompatible" in message for message in caplog.messages) == 1
    assert "fake_fake_windowed" not in sys.modules


@pytest.mark.parametrize(
    "requirement", ["attnloom; extra == 'x'", "attnloom>=99; extra == 'x'", "numpy>=1", "attnloom"]
)
def test_other_requirements_do_not_matter(site, requirement):
    site.add("windowed", requires=(requirement,))
    assert site.plugins().variant("windowed").name == "windowed"


def test_a_requirement_that_cannot_be_read_is_this_plugins_failure(site, states):
    site.add("windowed", requires=("attnloom >>> 1",))
    site.add("alike")
    assert states(site.plugins()) == {"windowed": "failed", "alike": "found"}


def test_metadata_that_cannot_be_read_is_this_plugins_failure(site):
    site.add("windowed", metadata="nonsense")
    site.add("alike")
    plugins = site.plugins()
    assert sorted(record.state for record in plugins.records()[1:]) == ["failed", "found"]
    assert plugins.variant("alike").name == "alike"


@pytest.mark.parametrize(
    ("entry_points", "reason"),
    [
        ("[attnloom]\n9lives = fake_p.plugin\n", "does not match"),
        ("[attnloom]\np = fake_p.plugin:thing\n", "no module path"),
        ("[attnloom]\np = fake_p.plugin\n[attnloom.provides]\nvariants.p = fake_p.plugin\n", "did you mean 'variant'"),
        ("[attnloom]\np = fake_p.plugin\n[attnloom.provides]\nvariant.p = fake_q.plugin\n", "no plugin of its distr"),
        ("[attnloom]\np = fake_p.plugin\n[attnloom.provides]\nvariant.p.q = fake_p.plugin\n", None),
        ("[attnloom]\np = fake_p.plugin\n[attnloom.provides]\nvariant.9 = fake_p.plugin\n", "does not match"),
    ],
)
def test_entry_points_that_make_no_sense(site, entry_points, reason):
    site.add("p", package="fake_p", entry_points=entry_points)
    (record,) = site.plugins().records()[1:]
    if reason is None:
        assert record.provides == (("variant", "p_q"),)
    else:
        assert record.state == "failed" and reason in record.reason


# mkdocs-localsearch #1: a built-in name is taken
@pytest.mark.parametrize("provides", ["variant.causal", "storage_format.dense", "tile_heuristic.auto"])
def test_the_cores_names_are_reserved(site, provides):
    site.add("greedy", EXPLODES, provides=(provides,))
    plugins = site.plugins()
    assert "reserved" in plugins.records()[1].reason
    assert plugins.variant("causal").struct == "attnloom::variants::Causal"


def test_dashes_and_underscores_are_one(site):
    site.add("soft_window", entry_points="[attnloom]\nsoft-window = fake_w.plugin\n"
             "[attnloom.provides]\nvariant.soft-window = fake_w.plugin\n", package="fake_w")  # fmt: skip
    plugins = site.plugins()
    assert plugins.variant("soft-window") is plugins.variant("soft_window") is plugins.variant(" Soft-Window ")


# pluggy #64, datasette #697: nothing depends on the order in which the file system or sys.path has things
def test_the_order_of_installation_does_not_matter(tmp_path):
    names = [f"p{i}" for i in range(8)]
    orders = []
    for seed in range(3):
        random.Random(seed).shuffle(names)
        folders = []
        for name in names:
            folder = tmp_path / str(seed) / name
            write_plugin(folder, name)
            folders.append(str(folder))
        records = PluginSet.from_config(Config(), paths=folders).records()
        orders.append([record.name for record in records])
    assert orders[0] == orders[1] == orders[2] == ["core", *sorted(names)]


def write_plugin(folder, name):
    info = folder / f"fake_{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fake-{name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[attnloom]\n{name} = fake_{name}.plugin\n")


# ini2toml #36: a distribution that is on the path twice counts once, the first wins
def test_the_first_distribution_of_a_name_on_the_path_wins(tmp_path):
    for folder, version in (("a", "1"), ("b", "2")):
        info = tmp_path / folder / f"fake_twice-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Fake.Twice\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("[attnloom]\ntwice = fake_twice.plugin\n")
    (tmp_path / "link").symlink_to(tmp_path / "a", target_is_directory=True)
    paths = [str(tmp_path / name) for name in ("a", "link", "b")]
    records = PluginSet.from_config(Config(), paths=paths).records()[1:]
    assert [(record.name, record.version) for record in records] == [("twice", "1")]


def test_a_newer_version_without_plugins_hides_an_older_with(tmp_path):
    for folder, version, points in (("a", "2", ""), ("b", "1", "[attnloom]\nold = fake_old.plugin\n")):
        info = tmp_path / folder / f"fake_old-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fake-old\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(points)
    assert PluginSet.from_config(Config(), paths=[str(tmp_path / "a"), str(tmp_path / "b")]).records()[1:] == ()


# opencode #7163: a checkout that a user merely stands in runs no code
@pytest.mark.parametrize("how", ["-c", "-m", "PYTHONPATH"])
def test_nothing_is_loaded_from_the_current_directory(site, how):
    site.add("planted", "open('ran', 'w')")
    code = "from attnloom.plugins import Config, PluginSet\nprint([r.name for r in PluginSet(Config()).records()])"
    (site.path / "probe.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(site.path) if how == "PYTHONPATH" else ""}
    arguments = ["-m", "probe"] if how == "-m" else ["-c", code]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=site.path, env=environment, capture_output=True, text=True, check=True
    )
    assert "core" in done.stdout and "planted" not in done.stdout
    assert not (site.path / "ran").exists()


# npe2 #232: names with dots and dashes broke look-ups that split on them
@given(st.text("abz019_-. ", min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_names_are_read_in_one_way(text):
    key = plugin_key(text)
    assert plugin_key(key) == key and not set("-.") & set(key)
    record = PluginRecord(name=key, distribution=canonicalize_name(text.strip()), version="1", module="m")
    assert record.is_called(key)
    if NAME.match(key):
        records = [PluginRecord(name="p", distribution="p", version="1", module="m")]
        discovery.assign(EntryPoint(f"variant.{text.strip()}", "m", "attnloom.provides"), records)
        assert records[0].provides == (("variant", key),) and records[0].offers


# vllm #30869, vllm-omni #3715: any number of external variants live side by side
def test_many_plugins_coexist(site):
    for i in range(12):
        site.add(f"v{i}")
    plugins = site.plugins()
    assert len({id(plugins.variant(f"v{i}")) for i in range(12)}) == 12
    assert {plugins.variant(f"v{i}").package for i in range(12)} == {f"fake_fake_v{i}" for i in range(12)}


def test_a_missing_plugin_in_disable_warns_and_no_more(site, caplog):
    site.add("windowed")
    plugins = site.plugins(disable=("windowd",))
    assert plugins.variant("windowed").name == "windowed"
    (message,) = caplog.messages
    assert "did you mean" in message and "windowed" in message


@pytest.mark.parametrize(
    "config",
    [
        {"enable": ("windowd",)},
        {"required": ("fake-windowd",)},
        {"required": ("fake-windowed>=2",)},
        {"required": ("fake-windowed",), "disable": ("windowed",)},
        {"prefer": {"variant:windowed": "windowd"}},
    ],
)
def test_what_the_configuration_names_must_be_there_when_used(site, config):
    site.add("windowed")
    plugins = site.plugins(source="here.toml", **config)
    assert len(plugins.records()) == 2
    for _ in range(2):
        with pytest.raises(PluginError, match=r"windowe?d.*here\.toml"):
            plugins.variant("causal")


def test_required_that_is_met_or_does_not_apply(site):
    site.add("windowed", version="0.3.0rc1")
    required = ("Fake_Windowed>=0.2", "fake-absent; sys_platform == 'nowhere'")
    assert site.plugins(required=required).variant("windowed").name == "windowed"


def test_without_autoload_only_what_is_named_is_used(site, states):
    site.add("windowed")
    site.add("alike", EXPLODES)
    plugins = site.plugins(autoload=False, enable=("windowed",))
    assert plugins.variant("windowed").name == "windowed"
    assert states(plugins) == {"windowed": "loaded", "alike": "disabled"}
