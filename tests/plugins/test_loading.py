"""Code later: a plugin is imported when needed, checked, and breaks nothing but itself."""

from __future__ import annotations

import logging
import pickle
import sys
import textwrap
import threading

import attnloom
import attrs
import pytest
from attnloom.errors import PluginError, UnavailableError, UnknownNameError
from attnloom.plugins import Config, PluginSet

HEAD = """
from attnloom.hookspecs import hookimpl
from attnloom.index import StorageFormat
from attnloom.tile import TileHeuristic
from attnloom.variant import Variant

def variant(name, **kwargs):
    usual = {"struct": "S", "header": "s.h", "functors": {"logits_mask"}, "reference": "m:a"}
    return Variant(**usual | {"name": name} | kwargs)
"""


def test_only_the_provider_is_loaded(site, states):
    site.add("windowed")
    site.add("alike", "raise ZeroDivisionError")
    plugins = site.plugins()
    variant = plugins.variant("windowed")
    assert (variant.name, variant.package) == ("windowed", "fake_fake_windowed")
    assert states(plugins) == {"windowed": "loaded", "alike": "found"}


# xarray #10178: what the core provides loads nothing
def test_the_cores_own_need_no_plugin(site, states):
    site.add("broken", "raise ZeroDivisionError")
    plugins = site.plugins()
    assert plugins.variant("causal").package == "attnloom"
    assert plugins.storage_format("dense").name == "dense"
    assert plugins.tile_heuristic("auto").name == "auto"
    assert states(plugins) == {"broken": "found"}
    assert (plugins.header_dir(plugins.variant("causal")) / plugins.variant("causal").header).is_file()


# llm #1280, httpie #1204, xarray PR #5136; pydantic catches only ImportError, and an OSError still kills it
@pytest.mark.parametrize(
    "body",
    [
        "import no_such_module_anywhere",
        "from attnloom.hookspecs import gone_since_then",
        "raise OSError('libcuda.so.1: cannot open shared object file')",
        "raise SystemExit(3)",
        "class Skipped(BaseException): pass\nraise Skipped('no GPU here')",
        "1 / 0",
        "this is no python",
    ],
)
def test_an_import_that_fails_breaks_nothing_else_and_is_told_once(site, states, caplog, body):
    site.add("broken", body)
    site.add("windowed")
    plugins = site.plugins()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"variant 'broken' cannot be had: plugin broken \(fake-broken 0"):
            plugins.variant("broken")
    assert plugins.variant("windowed").name == "windowed"
    assert states(plugins) == {"broken": "failed", "windowed": "loaded"}
    assert not caplog.records, "the error tells it"


@pytest.mark.parametrize("needs", ["attnloom>=99", "attnloom>=0.0.1"])
def test_what_cannot_be_used_is_told_once_by_an_error_or_by_a_warning(site, caplog, needs):
    site.add("broken", "1 / 0\n", requires=(needs,))
    asking = site.plugins()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"plugin broken .* is incompatible|ZeroDivisionError"):
            asking.variant("broken")
    asking.variant("causal"), asking.commands(), asking.notify_compiled("report")
    assert not caplog.records
    others = site.plugins()
    others.variant("causal"), others.commands(), others.variant("causal"), others.commands()
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.WARNING


# torch-spyre #3659: the first line has the root cause; sqlfluff PR #5661: name, version and both sides
def test_the_cause_is_in_the_message_and_chained(site):
    site.add("broken", "raise OSError('libcuda.so.1: cannot open shared object file')", version="4.5.6")
    with pytest.raises(PluginError) as caught:
        site.plugins().variant("broken")
    first = str(caught.value).splitlines()[0]
    assert "fake-broken 4.5.6" in first and "OSError: libcuda.so.1" in first
    assert f"under attnloom {attnloom.__version__}" in first
    assert isinstance(caught.value.__cause__, OSError)


def test_a_hook_that_raises_no_exception_proper_is_isolated_too(site, states):
    skipped = "class Skipped(BaseException): pass\n"
    site.add("broken", HEAD + skipped + "@hookimpl\ndef attnloom_variants(): raise Skipped('why')")
    plugins = site.plugins()
    with pytest.raises(UnavailableError, match="attnloom_variants raised Skipped: why"):
        plugins.variant("broken")
    assert states(plugins) == {"broken": "failed"}


def test_keyboard_interrupt_is_not_swallowed(site, states):
    site.add("slow", "raise KeyboardInterrupt")
    plugins = site.plugins()
    with pytest.raises(KeyboardInterrupt):
        plugins.variant("slow")
    assert states(plugins) == {"slow": "found"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "declares variant 'p', which no hook returns"),
        ("def attnloom_variants(): return [variant('p')]", "attnloom_variants is not marked with @hookimpl"),
        (
            "@hookimpl\ndef attnloom_variant(): pass",
            "unknown hook 'attnloom_variant'; did you mean 'attnloom_variants'",
        ),
        ("@hookimpl\ndef attnloom_variants(count): return []", "wrong.*count"),
        ("@hookimpl\ndef attnloom_variants(): return [variant('p'), variant('q')]", "'q', which .* does not declare"),
        ("@hookimpl\ndef attnloom_variants(): return [variant('q')]", "return variant 'q'"),
        ("@hookimpl\ndef attnloom_variants(): return [variant('p'), variant('p')]", "'p' twice"),
        ("@hookimpl\ndef attnloom_variants(): return ['p']", "returned 'p', which is no Variant"),
        ("@hookimpl\ndef attnloom_variants(): return 'p'", "iterable of descriptors, got 'p'"),
        ("@hookimpl\ndef attnloom_variants(): return variant('p')", "iterable of descriptors"),
        ("@hookimpl\ndef attnloom_variants(): return None", "iterable of descriptors, got None"),
        ("@hookimpl\ndef attnloom_variants(): 1 / 0", "attnloom_variants raised ZeroDivisionError"),
        ("@hookimpl\ndef attnloom_variants():\n  yield variant('p')\n  1 / 0", "raised ZeroDivisionError"),
        ("@hookimpl\ndef attnloom_variants(): return [variant('p', reference=None)]", "reference must be"),
        ("@hookimpl\ndef attnloom_variants(): return [variant('p', functors={'logit_mask'})]", "unknown functor"),
        ("@hookimpl\ndef attnloom_variants(): return [variant('p', package='numpy')]", "is in 'numpy'"),
        (
            "@hookimpl\ndef attnloom_storage_formats(): return [StorageFormat(name='p', builder='m:a')]",
            "storage format 'p'",
        ),
        ("@hookimpl\ndef attnloom_tile_heuristics(): return [TileHeuristic(name='A b', choose='m:a')]", "'A b'"),
        ("@hookimpl(wrapper=True)\ndef attnloom_variants():\n  return (yield)", "is a wrapper"),
    ],
)
def test_a_plugin_that_does_not_keep_its_word_is_failed(site, states, body, reason):
    site.add("p", HEAD + body)
    site.add("windowed")
    plugins = site.plugins()
    with pytest.raises(UnavailableError, match=reason):
        plugins.variant("p")
    assert states(plugins) == {"p": "failed", "windowed": "found"}
    # pluggy before 1.7 kept half of it registered: nothing of a failed plugin may be called later
    assert plugins._manager.get_plugins() == set()


def test_another_functor_contract_is_incompatible(site, states):
    site.add("p", HEAD + "@hookimpl\ndef attnloom_variants(): return [variant('p', abi=99)]")
    plugins = site.plugins()
    with pytest.raises(UnavailableError, match="functor contract 99, and this attnloom's is 1"):
        plugins.variant("p")
    assert states(plugins) == {"p": "incompatible"}


def test_several_hooks_kinds_and_implementations_in_one_plugin(site):
    body = """
    @hookimpl
    def attnloom_variants():
        yield variant("a")
    @hookimpl(specname="attnloom_variants")
    def more():
        return (variant("b"),)
    @hookimpl
    def attnloom_storage_formats():
        return [StorageFormat(name="a", builder="m:a")]
    @hookimpl
    def attnloom_tile_heuristics():
        return [TileHeuristic(name="c", choose="m:a")]
    """
    provides = ("variant.a", "variant.b", "storage_format.a", "tile_heuristic.c")
    site.add("many", HEAD + textwrap.dedent(body), provides=provides)
    plugins = site.plugins(prefer={"tile": "c"})
    assert [plugins.variant(name).name for name in "ab"] == ["a", "b"]
    assert plugins.storage_format("a").builder == "m:a"
    assert plugins.tile_heuristic("auto").name == plugins.tile_heuristic("c").name == "c"


def test_unknown_names_get_near_ones(site):
    site.add("sliding_window")
    plugins = site.plugins()
    with pytest.raises(UnknownNameError, match="no variant 'slidingwindow'; did you mean 'sliding_window'"):
        plugins.variant("slidingwindow")
    with pytest.raises(UnknownNameError, match=r"no variant 'zzz' \(installed: causal, sliding_window\)"):
        plugins.variant("zzz")
    with pytest.raises(UnknownNameError, match="'sliding_window' is a variant"):
        plugins.storage_format("sliding_window")
    with pytest.raises(UnknownNameError, match="no tile heuristic 'fast'"):
        plugins.tile_heuristic("fast")


def test_a_near_name_of_a_plugin_that_is_off_says_so(site):
    site.add("sliding_window")
    with pytest.raises(UnknownNameError, match="did you mean 'sliding_window'.*is disabled"):
        site.plugins(disable=("sliding_window",)).variant("sliding_windw")


# pytest #1479: skipping is right for what was merely found, wrong for what the user named
@pytest.mark.parametrize("config", [{"enable": ("broken",)}, {"required": ("fake-broken",)}, {"strict": True}])
def test_a_named_plugin_that_fails_is_fatal(site, config):
    site.add("broken", "1 / 0")
    plugins = site.plugins(**config)
    for _ in range(2):
        with pytest.raises(PluginError, match="ZeroDivisionError"):
            plugins.variant("causal")
    assert plugins.records()[1].state == "failed"


def test_strict_takes_an_incompatible_plugin_ill(site):
    site.add("old", requires=("attnloom<0.0.1",))
    with pytest.raises(PluginError, match="strict mode: plugin old .* is incompatible"):
        site.plugins(strict=True).variant("causal")


# llm #1280: any one of the plugins that are really installed may break, and the others do not notice
def test_each_installed_plugin_broken_in_turn(monkeypatch, caplog):
    everything = [record for record in PluginSet(Config()).records()[1:] if record.offers and record.provides]
    for broken in everything:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, broken.module, None)
            plugins = PluginSet(Config())
            caplog.clear()
            for record in everything:
                for kind, name in record.provides:
                    if record.name == broken.name:
                        with pytest.raises(UnavailableError, match=rf"{broken.distribution} .*failed.*{broken.module}"):
                            getattr(plugins, kind)(name)
                    else:
                        assert getattr(plugins, kind)(name).name == name
            assert not caplog.records


# torch-spyre #2925: a plugin that calls back while it is loaded
def test_a_plugin_that_asks_for_itself(site):
    site.add("selfish", "import sys\nsys.modules['conftest_plugins'].variant('selfish')")
    plugins = site.plugins()
    sys.modules["conftest_plugins"] = plugins
    try:
        with pytest.raises(UnavailableError, match="while it is being loaded"):
            plugins.variant("selfish")
    finally:
        del sys.modules["conftest_plugins"]


def test_threads_load_once(site):
    import builtins

    body = "import builtins, time\ntime.sleep(0.1)\nbuiltins.loads = getattr(builtins, 'loads', 0) + 1\n"
    site.add("slow", HEAD + body + "@hookimpl\ndef attnloom_variants(): return [variant('slow')]")
    plugins, found = site.plugins(), []
    threads = [threading.Thread(target=lambda: found.append(plugins.variant("slow"))) for _ in range(8)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert len(found) == 8 and len({id(variant) for variant in found}) == 1
    assert builtins.__dict__.pop("loads") == 1


# mcp-context-forge #5909: a second configuration is not ignored
def test_sets_are_independent(site, states):
    site.add("windowed")
    first, second = site.plugins(), site.plugins(disable=("windowed",))
    first.variant("windowed")
    assert states(first) == {"windowed": "loaded"} and states(second) == {"windowed": "disabled"}


def test_a_pickled_set_arrives_as_its_configuration(site):
    site.add("windowed")
    plugins = site.plugins(disable=("alibi",), settings={"windowed": {}})
    arrived = pickle.loads(pickle.dumps(plugins))
    assert arrived.config == plugins.config and arrived is not plugins
    assert arrived.variant("windowed").package == "fake_fake_windowed"
    spec = attnloom.AttentionSpec(["windowed"], num_qo_heads=1, num_kv_heads=1, head_dim=8, plugins=plugins)
    # however many specs arrive, their plugins are looked for once
    assert pickle.loads(pickle.dumps(spec)).plugins is pickle.loads(pickle.dumps(spec)).plugins is arrived


# mcp-context-forge #5909, several engines in one process: one name, two providers, two kernels
def test_engines_with_different_sets_stand_side_by_side(site):
    from attnloom.kernel import describe

    for distribution, value in (("aa-p", "false"), ("zz-p", "true")):
        site.add("p", distribution=distribution)
        text = (
            "#pragma once\n#include <attnloom/variant.h>\nstruct S {\n  template <class P>\n"
            f"  ATTNLOOM_FN bool logits_mask(const P&, const attnloom::Site&) const {{ return {value}; }}\n}};\n"
        )
        (site.path / f"fake_{distribution.replace('-', '_')}" / "s.h").write_text(text)
    found = {}
    for distribution in ("aa-p", "zz-p", "aa-p"):
        plugins = site.plugins(prefer={"variant:p": distribution})
        spec = attnloom.AttentionSpec(["p"], num_qo_heads=1, num_kv_heads=1, head_dim=8, plugins=plugins)
        composition, _, unit = describe(spec)
        (member,) = composition.members
        assert member.provider.distribution == distribution
        found.setdefault(distribution, []).append(tuple(unit.include_dirs))
    assert found["aa-p"][0] == found["aa-p"][1] != found["zz-p"][0]


# zarr-python #3261: what is given explicitly comes before what is installed
def test_a_descriptor_given_as_an_object_is_the_one_that_is_used(site):
    from attnloom.compose import compose

    site.add("windowed")
    plugins = site.plugins()
    given = attrs.evolve(plugins.variant("windowed"), struct="Mine")
    spec = attnloom.AttentionSpec([given], num_qo_heads=1, num_kv_heads=1, head_dim=8, plugins=plugins)
    (member,) = compose(spec.variants, spec=spec, plugins=plugins).members
    assert member.variant.struct == "Mine" and member.provider is None


# torch-spyre #2925: the plugin first or attnloom first, both work
def test_the_plugins_module_may_have_been_imported_before(site):
    import importlib

    site.add("windowed")
    module = importlib.import_module("fake_fake_windowed.plugin")
    assert site.plugins().variant("windowed").name == next(iter(module.attnloom_variants())).name


def test_header_dir(site):
    site.add("windowed")
    plugins = site.plugins()
    variant = plugins.variant("windowed")
    assert plugins.header_dir(variant) == site.path / "fake_fake_windowed"
    (site.path / "fake_fake_windowed" / "s.h").unlink()
    with pytest.raises(PluginError, match="no header 's.h' in .*fake_fake_windowed"):
        plugins.header_dir(variant)


# its folder is that of every other package too, whose headers would be its own
def test_a_plugin_that_is_one_module_has_no_header(site):
    (site.path / "fake_flat.py").write_text(HEAD + "@hookimpl\ndef attnloom_variants(): return [variant('flat')]")
    (site.path / "s.h").write_text("")
    site.add("flat", "", entry_points="[attnloom]\nflat = fake_flat\n[attnloom.provides]\nvariant.flat = fake_flat\n")
    plugins = site.plugins()
    with pytest.raises(PluginError, match="'fake_flat' is a module, not a package: put it in a package of its own"):
        plugins.header_dir(plugins.variant("flat"))


class TestObservers:
    BODY = """
    from attnloom.hookspecs import hookimpl
    seen = []
    @hookimpl
    def attnloom_kernel_compiled(report):
        seen.append(report)
        {action}
    """

    def observer(self, site, name, action="pass"):
        site.add(name, self.BODY.format(action=action), provides=())

    def test_told_and_isolated(self, site, caplog):
        self.observer(site, "a_bad", "1 / 0")
        self.observer(site, "b_exits", "raise SystemExit(1)")
        self.observer(site, "b_skips", "raise type('Skipped', (BaseException,), {})")
        self.observer(site, "c_good")
        plugins = site.plugins()
        plugins.notify_compiled("one"), plugins.notify_compiled("two")
        for name in ("a_bad", "b_exits", "b_skips", "c_good"):
            assert sys.modules[f"fake_fake_{name}.plugin"].seen == ["one", "two"]
        assert len(caplog.records) == 3

    def test_a_variants_plugin_is_not_loaded_for_it(self, site, states):
        site.add("windowed")
        plugins = site.plugins()
        plugins.notify_compiled(object())
        assert states(plugins) == {"windowed": "found"}

    def test_arguments_may_be_left_out(self, site):
        body = "seen = []\n@hookimpl\ndef attnloom_kernel_compiled(): seen.append(1)"
        site.add("curt", HEAD + body, provides=())
        site.plugins().notify_compiled("report")
        assert sys.modules["fake_fake_curt.plugin"].seen == [1]
