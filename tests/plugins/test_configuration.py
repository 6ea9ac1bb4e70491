"""Where the configuration comes from, what it may say, and how it reaches workers."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest
from attnloom.errors import ConfigError, ParamError, UnavailableError, UnknownNameError
from attnloom.plugins import Config, PluginSet, Stack
from attnloom.plugins.configuration import EXPORT, find_file


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory, with a user's configuration folder in it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def write(path, text="[plugins]\nautoload = false\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class TestSearch:
    def test_nothing_found_is_the_default(self, home):
        assert Config.resolve({}, home) == Config()
        assert Config.resolve({}, home).source == "defaults"

    def test_the_nearest_wins_whole(self, home):
        write(home / "p" / "attnloom.toml", '[plugins]\ndisable = ["far"]\n[stacks.s]\nvariants = ["causal"]\n')
        near = write(home / "p" / "q" / "attnloom.toml", '[plugins]\nenable = ["near"]\n')
        (home / "p" / "q" / "r").mkdir()
        config = Config.resolve({}, home / "p" / "q" / "r")
        assert (config.enable, config.disable, config.stacks) == (("near",), (), {})
        assert config.source == str(near)

    def test_a_pyproject_counts_only_with_the_table(self, home):
        write(home / "p" / "pyproject.toml", '[tool.attnloom.plugins]\ndisable = ["here"]\n')
        write(home / "p" / "q" / "pyproject.toml", '[project]\nname = "x"\ndependencies = ["attnloom"]\n')
        assert Config.resolve({}, home / "p" / "q").disable == ("here",)

    def test_a_broken_pyproject_that_is_not_about_attnloom_is_passed_by(self, home):
        write(home / "p" / "pyproject.toml", "[broken")
        assert find_file({}, home / "p") is None
        write(home / "p" / "pyproject.toml", "[tool.attnloom]\n[broken")
        with pytest.raises(ConfigError, match=r"pyproject\.toml cannot be read"):
            find_file({}, home / "p")

    def test_in_one_folder_attnloom_toml_is_first(self, home):
        write(home / "pyproject.toml", "[tool.attnloom]\n")
        assert find_file({}, home) == home / "pyproject.toml"
        own = write(home / "attnloom.toml")
        assert find_file({}, home) == own

    def test_it_stops_at_the_root_of_the_repository(self, home):
        write(home / "attnloom.toml")
        (home / "repo" / ".git").mkdir(parents=True)
        (home / "repo" / "src").mkdir()
        assert find_file({}, home / "repo" / "src") is None
        own = write(home / "repo" / "attnloom.toml")
        assert find_file({}, home / "repo" / "src") == own

    def test_it_stops_at_home(self, home):
        write(home.parent / "attnloom.toml")
        (home / "p").mkdir()
        assert find_file({}, home / "p") is None

    def test_last_comes_the_users_folder(self, home):
        own = write(home / ".config" / "attnloom" / "attnloom.toml")
        (home / "p").mkdir()
        if sys.platform == "linux":
            assert find_file({}, home / "p") == own

    def test_attnloom_config_names_a_file_or_none(self, home):
        write(home / "attnloom.toml")
        other = write(home / "other.toml", '[plugins]\nenable = ["a"]\n')
        assert Config.resolve({"ATTNLOOM_CONFIG": str(other)}, home).enable == ("a",)
        assert Config.resolve({"ATTNLOOM_CONFIG": "~/other.toml"}, home).enable == ("a",)
        assert Config.resolve({"ATTNLOOM_CONFIG": ""}, home) == Config()
        with pytest.raises(ConfigError, match="which is no file"):
            Config.resolve({"ATTNLOOM_CONFIG": "~nobody_at_all/other.toml"}, home)
        with pytest.raises(ConfigError, match=r"ATTNLOOM_CONFIG names 'gone\.toml', which is no file"):
            Config.resolve({"ATTNLOOM_CONFIG": "gone.toml"}, home)

    def test_a_byte_order_mark_is_no_error(self, home):
        (home / "attnloom.toml").write_text("[plugins]\nstrict = true\n", encoding="utf-8-sig")
        assert Config.resolve({}, home).strict


class TestEnvironment:
    def resolve(self, home, text="", **environ):
        write(home / "attnloom.toml", text)
        return Config.resolve(environ, home)

    # llm: items were not stripped, and a miss was silent
    def test_plugins_is_an_allow_list_over_the_file(self, home):
        text = '[plugins]\nenable = ["x"]\ndisable = ["b"]\n'
        config = self.resolve(home, text, ATTNLOOM_PLUGINS=" A-1, b ,,")
        assert (config.autoload, config.enable, config.disable) == (False, ("a_1", "b"), ())
        assert "ATTNLOOM_PLUGINS" in config.source

    def test_empty_plugins_is_the_rescue(self, home):
        config = self.resolve(home, '[plugins]\nenable = ["x"]\n', ATTNLOOM_PLUGINS="")
        assert (config.autoload, config.enable) == (False, ())

    def test_disable_adds_and_wins_over_the_file(self, home):
        text = '[plugins]\nenable = ["x", "y"]\ndisable = ["z"]\n'
        config = self.resolve(home, text, ATTNLOOM_DISABLE_PLUGINS="x")
        assert (config.autoload, config.enable, config.disable) == (True, ("y",), ("z", "x"))

    def test_contradictions(self, home):
        with pytest.raises(ConfigError, match=r"\['a'\] stand in both"):
            self.resolve(home, ATTNLOOM_PLUGINS="a,b", ATTNLOOM_DISABLE_PLUGINS="A")

    @pytest.mark.parametrize(("value", "strict"), [("1", True), ("TRUE", True), ("0", False), ("", False)])
    def test_strict(self, home, value, strict):
        assert self.resolve(home, "[plugins]\nstrict = true\n", ATTNLOOM_STRICT=value).strict is strict

    def test_strict_is_a_switch(self, home):
        with pytest.raises(ConfigError, match="ATTNLOOM_STRICT must be 0 or 1, got 'maybe'"):
            self.resolve(home, ATTNLOOM_STRICT="maybe")


class TestContent:
    def test_all_keys(self):
        config = Config.from_mapping(
            {
                "plugins": {"autoload": False, "enable": ["Rope"], "required": ["attnloom-rope>=0.1"], "strict": True},
                "prefer": {"variant:soft-cap": "attnloom-soft-cap", "tile": "my-rule"},
                "stacks": {"gemma2-local": {"variants": ["causal", "Cap=soft-cap"],
                                            "params": {"cap.cap": 50.0, "soft_cap": {"n": 1}}}},
            }
        )  # fmt: skip
        assert config.enable == ("rope",)
        assert config.prefer == {"variant:soft_cap": "attnloom_soft_cap", "tile": "my_rule"}
        assert config.stacks == {"gemma2_local": Stack(("causal", "cap=soft_cap"), {"cap.cap": 50.0, "soft_cap.n": 1})}

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"plugins_": {}}, "unknown key 'plugins_'; did you mean 'plugins'"),
            ({"plugins": {"enabled": []}}, r"\[plugins\]: unknown key 'enabled'; did you mean 'enable'"),
            ({"plugins": {"autoload": "yes"}}, "autoload must be true or false, got 'yes'"),
            ({"plugins": {"enable": "rope"}}, "enable must be an array of names, got 'rope'"),
            ({"plugins": {"enable": [""]}}, "enable must be an array"),
            ({"plugins": {"enable": ["a-b"], "disable": ["a_b"]}}, r"\['a_b'\] stand in both"),
            ({"plugins": {"required": ["rope >>= 1"]}}, "'rope >>= 1' is no requirement"),
            ({"plugins": []}, r"\[plugins\] must be a table"),
            ({"prefer": {"variants:rope": "rope"}}, "'variants:rope' is neither .* did you mean 'variant'"),
            ({"prefer": {"rope": "rope"}}, "'rope' is neither"),
            ({"prefer": {"variant:rope": 1}}, "must name a plugin, got 1"),
            ({"stacks": {"s": {}}}, "names no variants"),
            (
                {"stacks": {"s": {"variant": ["causal"]}}},
                r"\[stacks.s\]: unknown key 'variant'; did you mean 'variants'",
            ),
            ({"stacks": {"9": {"variants": ["causal"]}}}, "'9' is no name"),
            ({"stacks": {"s": {"variants": ["a=b=c"]}}}, "'b=c' is no name"),
            ({"stacks": {"s": {"variants": ["a"], "params": {"cap": 1.0}}}}, 'must be written "variant.param"'),
            ({"stacks": {"s": {"variants": ["a"], "params": {"a.b": [1]}}}}, r"must be a scalar, got \[1\]"),
            ({"stacks": {"a-b": {"variants": ["a"]}, "a_b": {"variants": ["a"]}}}, "'a_b' twice"),
            ({"tool": {"attnloom": {}}}, r"write \[plugins\], not \[tool.attnloom.plugins\]"),
        ],
    )
    def test_mistakes_name_the_place_and_the_remedy(self, data, message):
        with pytest.raises(ConfigError, match=f"^here.toml: .*{message}" if "here" in message else message) as caught:
            Config.from_mapping(data, "here.toml")
        assert str(caught.value).startswith("here.toml")

    def test_stacks_by_name(self, site):
        config = Config.from_mapping({"stacks": {"gemma2_local": {"variants": ["causal"]}}}, "here.toml")
        plugins = PluginSet.from_config(config, paths=[])
        assert plugins.stack("Gemma2-Local").variants == ("causal",)
        with pytest.raises(UnknownNameError, match=r"no stack 'gemma2'; did you mean 'gemma2_local'.*here\.toml"):
            plugins.stack("gemma2")

    @pytest.mark.parametrize(
        ("stack", "error", "message"),
        [
            ({"variants": ["capped"], "params": {"capped.capp": 1}}, ParamError, r"'capped\.capp'; .*'capped\.cap'"),
            ({"variants": ["c=capped"], "params": {"capped.cap": 1}}, ParamError, r"'capped\.cap'; .*'c\.cap'"),
            ({"variants": ["capped"], "params": {"capped.cap": "x"}}, ParamError, "must be a number, got 'x'"),
            ({"variants": ["caped"]}, UnknownNameError, "no variant 'caped'; did you mean 'capped'"),
            ({"variants": ["broken"]}, UnavailableError, "broken.*No module named 'nowhere'"),
        ],
    )
    def test_what_a_stack_names_wrongly_is_told_with_the_stack_and_the_file(self, site, stack, error, message):
        source = VARIANT.format(name="capped").replace("(name", "(params=[Param('cap', default=1.0)], name")
        site.add("capped", "from attnloom.variant import Param\n" + source)
        site.add("broken", "import nowhere")
        config = Config.from_mapping({"stacks": {"mine": stack}}, "here.toml")
        with pytest.raises(error, match=rf"^\[stacks\.mine\] \(here\.toml\): .*{message}"):
            PluginSet.from_config(config, paths=[str(site.path)]).stack("mine")


class TestExport:
    CONFIG = Config(
        enable=("a",),
        prefer={"tile": "x"},
        stacks={"s": Stack(("causal",), {"a.b": 1.5})},
        settings={"a": {"span": 7, "deep": True}},
        source="f",
    )

    def test_round_trips(self):
        for copy in (Config.from_export(self.CONFIG.export()), pickle.loads(pickle.dumps(self.CONFIG))):
            assert copy == self.CONFIG and copy.source == "f" and copy.settings["a"]["deep"] is True

    def test_an_exported_configuration_ends_the_search(self, home):
        write(home / "attnloom.toml")
        environ = {EXPORT: self.CONFIG.export(), "ATTNLOOM_PLUGINS": "other"}
        assert Config.resolve(environ, home) == self.CONFIG

    def test_what_is_for_workers_only_leaves_other_processes_alone(self, home):
        environ = {EXPORT: self.CONFIG.export(for_any_process=False)}
        assert Config.resolve(environ, home) == Config()

    @pytest.mark.parametrize("text", ["nonsense", "{}", json.dumps({"config": {"enabled": []}})])
    def test_nonsense(self, home, text):
        with pytest.raises(ConfigError, match=EXPORT):
            Config.resolve({EXPORT: text}, home)

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            ({"enable": "rope"}, "Config enable must be an array of names, got 'rope'"),
            ({"disable": "rope"}, "Config disable must be an array of names, got 'rope'"),
            ({"required": "attnloom-rope"}, "Config required must be an array of names, got 'attnloom-rope'"),
            ({"stacks": {"s": {"variants": "causal"}}}, "variants must be an array of names, got 'causal'"),
        ],
    )
    def test_a_string_in_place_of_a_list_is_not_split_into_letters(self, home, fields, told):
        with pytest.raises(ConfigError, match=f"{EXPORT}.*{told}"):
            Config.resolve({EXPORT: json.dumps({"config": fields})}, home)
        with pytest.raises(ConfigError, match="Stack variants must be an array of names, got 'causal'"):
            Stack("causal")


VARIANT = """
from attnloom.hookspecs import hookimpl
from attnloom.variant import Variant

@hookimpl
def attnloom_variants():
    yield Variant(name="{name}", struct="S", header="s.h", functors={{"logits_mask"}}, reference="numpy:ndarray")
"""


# vllm #16228, #18740, #5657, #27940 and pytest #12186: what the parent resolved is what workers use
WORKERS = """
import multiprocessing, os, sys
from attnloom.plugins import PluginSet

def work(queue):
    plugins = PluginSet.default()
    span = plugins.settings("windowed").span
    queue.put((plugins.config.source, plugins.variant("windowed").package, plugins.stack("s").variants, span))

if __name__ == "__main__":
    source = PluginSet.default().config.source
    os.chdir("/")
    os.environ["ATTNLOOM_DISABLE_PLUGINS"] = "windowed"
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        result = queue.get(timeout=60)
        process.join()
        assert result == (source, "fake_fake_windowed", ("causal",), 64), result
    print("both")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_forked_and_spawned_workers_get_the_configuration(site, home, monkeypatch):
    declared = "\n@hookimpl\ndef attnloom_settings():\n    yield Setting('span', int, default=1)\n"
    site.add("windowed", "from attnloom import Setting\n" + VARIANT.format(name="windowed") + declared)
    text = '[plugins]\nenable = ["windowed"]\n[stacks.s]\nvariants = ["causal"]\n[plugin.windowed]\nspan = 64\n'
    write(home / "p" / "attnloom.toml", text)
    script = write(home / "p" / "workers.py", WORKERS)
    monkeypatch.setenv("PYTHONPATH", str(site.path))
    for name in ("ATTNLOOM_CONFIG", EXPORT):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, str(script)], cwd=script.parent, capture_output=True, text=True, timeout=120)
    assert done.stdout == "both\n", done.stderr


def test_a_forked_child_is_not_stuck_on_a_lock_of_its_parent(site):
    import os
    import threading

    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    plugins = site.plugins()
    held, release = threading.Event(), threading.Event()

    def hold():
        with plugins._lock:
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if plugins.variant("causal").name == "causal" else 1)
    release.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_the_package_is_callable_and_lists(site):
    import attnloom

    assert attnloom.plugins()[0].name == "core"
    assert PluginSet.default() is PluginSet.default()
