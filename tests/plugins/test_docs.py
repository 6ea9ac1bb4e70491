"""docs/plugins.md, held to the code: signatures, configuration, environment variables, and the tutorial itself."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from attnloom.hookspecs import HOOKS, AttnloomSpecs
from attnloom.plugins import Config, PluginSet, State, configuration, schema

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = TEXT) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """The text below one heading, up to the next of its level."""
    level, name = title.split(" ", 1)
    return re.split(rf"^#{{1,{len(level)}}} ", TEXT.split(f"\n{level} {name}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


# datasette's tests bind documentation to code in the same way
@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_section_with_its_exact_signature(hook):
    signature = inspect.signature(getattr(AttnloomSpecs, hook))
    arguments = [str(value).replace("'", "") for name, value in signature.parameters.items() if name != "self"]
    returns = str(signature.return_annotation).strip("'")
    (block,) = blocks("python", section(f"### {hook}"))
    assert block == f"def {hook}({', '.join(arguments)}) -> {returns}\n"


def test_no_section_is_of_a_hook_that_is_gone():
    assert set(re.findall(r"^### (attnloom_\w+)$", TEXT, re.MULTILINE)) == set(HOOKS)


def test_the_configuration_shown_is_one_and_shows_every_key():
    (shown, *_) = blocks("toml", section("## Configure"))
    config = Config.from_mapping(tomllib.loads(shown)["tool"]["attnloom"], "docs")
    assert config.stacks["gemma2"].params == {"soft_cap.cap": 50.0} and config.settings["compile_journal"]
    for key in (*schema.PLUGIN_KEYS, *schema.STACK_KEYS, *(f"attnloom.{table}" for table in schema.TABLES)):
        assert key in shown, key
    for block in blocks("toml"):
        table = tomllib.loads(block)
        if "tool" in table:
            Config.from_mapping(table["tool"]["attnloom"], "docs")


def test_every_variable_and_state_is_explained():
    for variable in (*configuration.ENVIRONMENT, "ATTNLOOM_CONFIG", "ATTNLOOM_CACHE_DIR", configuration.EXPORT):
        assert f"`{variable}`" in TEXT or f"{variable}\n" in TEXT or variable in TEXT, variable
    for state in State:
        assert f"| `{state}` |" in TEXT


def test_every_link_leads_somewhere():
    headings = {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-")
                for line in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)}  # fmt: skip
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"\n", " ", TEXT)):
        path, _, anchor = target.partition("#")
        if path:
            assert (ROOT / "docs" / path).exists(), target
        else:
            assert anchor in headings, target


def test_several_sets_as_shown():
    import attnloom

    names = {"attnloom": attnloom}
    for block in blocks("python", section("## Several sets and worker processes")):
        if "EXPORT]" not in block:
            exec(block, names)
    assert names["index"].num_tokens == 4 and names["spec"].plugin_set is names["ours"]
    exported = names["ours"].config.export()
    assert Config.resolve({configuration.EXPORT: exported}) == names["ours"].config


@pytest.fixture
def tutorial(tmp_path, monkeypatch):
    """The package of the tutorial, as its reader has it, importable."""
    command = [sys.executable, "-m", "attnloom", "plugins", "new", "strided", "--kind", "variant"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    folder = tmp_path / "attnloom-strided"
    for name, text in re.findall(r"^File `([^`]+)`:\n\n```\w+\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        assert (folder / name).is_file(), f"the tutorial writes {name}, which `plugins new` does not make"
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder / "src"))
    yield folder
    for name in [name for name in sys.modules if name.startswith("attnloom_strided")]:
        del sys.modules[name]


def test_the_tutorial_computes_what_it_says(tutorial):
    from attnloom.testing.functors import check_against_reference

    variant = importlib.import_module("attnloom_strided.plugin").attnloom_variants()[0]
    import attrs

    for params in ({}, {"strided.near": 1, "strided.stride": 3}):
        check_against_reference([attrs.evolve(variant, package="attnloom_strided")], params)
    suite = importlib.import_module("attnloom.testing").VariantSuite
    names: dict = {}
    exec((tutorial / "tests" / "test_strided.py").read_text(), names)
    assert issubclass(names["TestStrided"], suite) and names["TestStrided"].variant == variant.name
    for case in names["TestStrided"].cases:
        assert set(case) <= {param.name for param in variant.params}


def test_the_settings_shown_work(site):
    shown = section("## Give it settings")
    (body, *_) = blocks("python", shown)
    site.add("measured", body, provides=("tile_heuristic.measured",))
    (table, *_) = blocks("toml", shown)
    config = Config.from_mapping(tomllib.loads(table)["tool"]["attnloom"], "docs")
    plugins = PluginSet.from_config(config, paths=[str(site.path)])
    assert plugins.tile_heuristic("measured").options == {"table": "server"}
