"""Settings: declared by a plugin, given by the configuration, checked when the plugin is loaded."""

from __future__ import annotations

import pickle

import pytest
from attnloom.errors import ConfigError, PluginError
from attnloom.plugins import Config, PluginSet
from attnloom.settings import Setting, Settings, settle

# vllm #40051: factories that take no argument leave no way for a plugin to be configured
BODY = """
from attnloom import Setting, hookimpl
from attnloom.index import StorageFormat
from attnloom.tile import TileHeuristic
from attnloom.variant import Param, Variant

@hookimpl
def attnloom_settings():
    yield Setting("span", int, default=512, doc="tokens")
    yield Setting("mode", choices=["near", "far"], default="near")
    yield Setting("scale", float, default=1.0)
    yield Setting("deep", bool, default=False)

@hookimpl
def attnloom_variants(settings):
    yield Variant(name="p", struct="S", header="s.h", functors={"logits_mask"}, reference="m:a",
                  params=[Param("span", int, default=settings.span)])

@hookimpl
def attnloom_storage_formats(settings):
    yield StorageFormat(name="p", builder="fake_fake_p.plugin:build", options={"mode": settings["mode"]})

@hookimpl
def attnloom_tile_heuristics(settings):
    yield TileHeuristic(name="p", choose="fake_fake_p.plugin:choose", options=settings)

modes = []

def build(qo_lens, kv_lens, page_size, mode):
    from attnloom.dense import build_index

    modes.append(mode)
    return build_index(qo_lens, kv_lens, page_size)

def choose(problem, **options):
    return options

seen = []

@hookimpl
def attnloom_kernel_compiled(report, settings):
    seen.append(settings.span)
"""
PROVIDES = ("variant.p", "storage_format.p", "tile_heuristic.p")


@pytest.fixture
def configured(site):
    """A set under the given table `[plugin.p]`."""

    def make(table: dict, body: str = BODY, name: str = "p") -> PluginSet:
        if not (site.path / "fake_fake_p").exists():
            site.add("p", body, provides=PROVIDES)
        config = Config.from_mapping({"plugin": {name: table}}, "here.toml")
        return PluginSet.from_config(config, paths=[str(site.path)])

    return make


@pytest.mark.parametrize("name", ["p", "fake-p"])
def test_every_hook_gets_them(configured, name):
    import sys

    plugins = configured({"span": 64, "mode": "far", "scale": 2}, name=name)
    assert plugins.variant("p").param("span").default == 64
    plugins.storage_format("p").build_index([1], [1])
    plugins.storage_format("p").build_index([1], [1], mode="near")
    assert sys.modules["fake_fake_p.plugin"].modes == ["far", "near"]
    assert plugins.tile_heuristic("p").options == {"span": 64, "mode": "far", "scale": 2.0, "deep": False}
    plugins.notify_compiled("report")
    assert sys.modules["fake_fake_p.plugin"].seen == [64]
    assert plugins.settings("p").mode == "far" and plugins.settings("Fake-P").scale == 2.0


def test_without_a_table_the_defaults_hold(site):
    site.add("p", BODY, provides=PROVIDES)
    assert dict(site.plugins().settings("p")) == {"span": 512, "mode": "near", "scale": 1.0, "deep": False}


def test_two_sets_in_one_process_have_their_own(configured):
    first, second = configured({"span": 1}), configured({"span": 2})
    assert [one.variant("p").param("span").default for one in (first, second, first)] == [1, 2, 1]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"spann": 1}, "unknown setting 'spann'; did you mean 'span'. .the plugin has: span, mode, scale, deep"),
        ({"span": "1"}, "span must be an integer, got '1'"),
        ({"span": True}, "span must be an integer, got True"),
        ({"span": 1.5}, "span must be an integer, got 1.5"),
        ({"scale": "x"}, "scale must be a number"),
        ({"deep": 1}, "deep must be true or false, got 1"),
        ({"mode": "fra"}, "mode must be one of 'near', 'far', got 'fra'"),
    ],
)
def test_a_mistake_is_an_error_at_once_and_names_the_place(configured, table, message):
    plugins = configured(table)
    assert len(plugins.records()) == 2
    for _ in range(2):
        with pytest.raises(PluginError, match=rf"plugin p \(fake-p 0.1.0\) failed.*plugin\.p.*here\.toml.*{message}"):
            plugins.variant("causal")


def test_a_required_setting_is_asked_for(site):
    site.add("p", BODY.replace("default=512", "required=True"), provides=PROVIDES)
    with pytest.raises(PluginError, match=r"\[plugin.p\].*needs a setting 'span' \(an integer, tokens\)"):
        site.plugins().variant("p")
    assert site.plugins(settings={"p": {"span": 3}}).settings("p").span == 3


def test_a_table_for_no_plugin_is_an_error_when_something_is_used(site):
    site.add("windowed")
    plugins = site.plugins(settings={"windowd": {}}, source="here.toml")
    assert len(plugins.records()) == 2
    with pytest.raises(PluginError, match=r"\[plugin.windowd\] has settings, and no such .*'windowed'.*here\.toml"):
        plugins.variant("causal")


def test_a_plugin_without_settings_takes_none(site):
    site.add("windowed")
    with pytest.raises(PluginError, match=r"unknown setting 'a' \(the plugin has: none\)"):
        site.plugins(settings={"windowed": {"a": 1}}).variant("windowed")


def test_a_table_does_not_switch_a_plugin_on(site, states):
    site.add("windowed", "raise ZeroDivisionError")
    plugins = site.plugins(settings={"windowed": {"a": 1}}, disable=("windowed",))
    assert plugins.variant("causal") and states(plugins) == {"windowed": "disabled"}
    plugins = site.plugins(settings={"windowed": {"a": 1}}, autoload=False)
    assert plugins.variant("causal") and states(plugins) == {"windowed": "disabled"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("yield Setting('A b')", "name of a setting must match"),
        ("yield Setting('a', list)", "type must be bool, int, float or str"),
        ("yield Setting('a', int, default='x')", "a must be an integer, got 'x'"),
        ("yield 'a'", "returned 'a', which is no Setting"),
        ("yield from [Setting('a'), Setting('a')]", "returned 'a' twice"),
    ],
)
def test_a_wrong_schema_is_the_plugins_failure(site, lines, message):
    body = f"from attnloom import Setting, hookimpl\n@hookimpl\ndef attnloom_settings():\n    {lines}\n"
    site.add("p", body, provides=())
    site.add("windowed")
    plugins = site.plugins()
    assert plugins.variant("windowed")
    with pytest.raises(PluginError, match=message):
        plugins.settings("p")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"plugin": []}, r"\[plugin\] must be a table"),
        ({"plugin": {"p": 3}}, r"\[plugin.p\] must be a table, got 3"),
        ({"plugin": {"p": {"a": [1]}}}, r"\[plugin.p\] 'a' must be a scalar"),
        ({"plugin": {"a-b": {}, "a_b": {}}}, "'a_b' twice"),
    ],
)
def test_tables_that_make_no_sense(data, message):
    with pytest.raises(ConfigError, match=f"^here.toml: .*{message}"):
        Config.from_mapping(data, "here.toml")


def test_settings_are_read_only_and_pickle():
    settings = settle([Setting("a", int, default=1)], {"a": 2}, "here")
    assert settings == {"a": 2} and pickle.loads(pickle.dumps(settings)).a == 2
    with pytest.raises(AttributeError, match="do not change"):
        settings.a = 3
    with pytest.raises(AttributeError, match="declares no setting 'b'; it has a"):
        _ = settings.b
    assert repr(settings) == "Settings({'a': 2})" and Settings() == {}


def test_a_configuration_made_in_code_is_held_to_the_same_rules():
    config = Config(enable=["Attnloom-Rope"], prefer={"variant:Soft-Cap": "x"}, settings={"My-Plugin": {"A-b": 1}})
    assert config.enable == ("attnloom_rope",) and config.prefer == {"variant:soft_cap": "x"}
    assert config.settings == {"my_plugin": {"a_b": 1}}
    for wrong in (
        {"enable": "rope"},
        {"autoload": "no"},
        {"required": ["a >>> 1"]},
        {"prefer": {"rope": "x"}},
        {"stacks": {"s": {}}},
    ):
        with pytest.raises(ConfigError, match="Config"):
            Config(**wrong)
