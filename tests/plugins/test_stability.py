"""What stays stable: old plugins under new hooks, deprecations at the author's line, removed hooks with advice."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pluggy
import pytest
from attnloom import hookspecs
from attnloom.errors import PluginError, UnavailableError
from attnloom.hookspecs import AttnloomSpecs, hookspec
from attnloom.plugins import loading
from attnloom.plugins.metadata import compare, refused
from attnloom.plugins.record import PluginRecord
from hypothesis import given, settings
from hypothesis import strategies as st

OLD = """
from attnloom.hookspecs import hookimpl
from attnloom.variant import Variant

seen = []

@hookimpl
def attnloom_variants():
    yield Variant(name="old", struct="S", header="s.h", functors={"logits_mask"}, reference="m:a")

@hookimpl
def attnloom_kernel_compiled(report):
    seen.append(report)
"""


class NewSpecs(AttnloomSpecs):
    """The hooks of a later release: two have a new argument, one of them an old one on its way out; one hook is new."""

    @hookspec
    def attnloom_variants(self, settings, target):
        """With `target`, which no plugin of today knows."""

    @hookspec(warn_on_impl_args={"report": DeprecationWarning("`report` goes in attnloom 3.0: take `compiled`")})
    def attnloom_kernel_compiled(self, report, compiled, settings):
        """With `compiled`."""

    @hookspec(warn_on_impl=DeprecationWarning("attnloom_commands goes in attnloom 3.0: use attnloom_subcommands"))
    def attnloom_commands(self, register, settings):
        """On its way out as a whole."""

    @hookspec
    def attnloom_subcommands(self, app):
        """New."""


@pytest.fixture
def record(site):
    def make(body, name="old"):
        site.add(name, body, provides=(f"variant.{name}",) if "attnloom_variants" in body else ())
        module, provides = f"fake_fake_{name}.plugin", ((("variant", name),) if "attnloom_variants" in body else ())
        return PluginRecord(
            name=name, distribution=f"fake-{name}", version="1", module=module, provides=provides,
            location=str(site.path),
        )  # fmt: skip

    return make


# tox, pytest, pluggy: arguments are a subset, so a specification may grow
def test_an_old_implementation_works_under_a_new_specification(record):
    manager = loading.new_manager(NewSpecs)
    with pytest.warns(DeprecationWarning):
        loaded = loading.load(record(OLD), manager)
    assert set(loaded.contributions) == {("variant", "old")}
    (observer,) = manager.hook.attnloom_kernel_compiled.get_hookimpls()
    loading.call(observer, report="r", compiled="c", settings=loaded.settings)
    assert sys.modules["fake_fake_old.plugin"].seen == ["r"]


def test_an_implementation_that_asks_for_an_argument_of_a_later_release_is_that_plugins_failure(site, states):
    site.add("new", OLD.replace("attnloom_variants()", "attnloom_variants(settings, target)").replace('"old"', '"new"'))
    site.add("windowed")
    plugins = site.plugins()
    with pytest.raises(UnavailableError, match="target"):
        plugins.variant("new")
    assert plugins.variant("windowed") and states(plugins) == {"new": "failed", "windowed": "loaded"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (OLD, "`report` goes in attnloom 3.0: take `compiled`"),
        (
            "from attnloom.hookspecs import hookimpl\n\n\n@hookimpl\ndef attnloom_commands(register):\n    pass\n",
            "attnloom_commands goes in attnloom 3.0: use attnloom_subcommands",
        ),
    ],
)
def test_a_deprecation_is_told_at_the_authors_own_line(record, body, text):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loading.load(record(body), loading.new_manager(NewSpecs))
    (warning,) = [one for one in caught if issubclass(one.category, DeprecationWarning)]
    assert str(warning.message) == text
    assert warning.filename.endswith("fake_fake_old/plugin.py")
    lines = Path(warning.filename).read_text().splitlines()
    hook = "attnloom_kernel_compiled" if body == OLD else "attnloom_commands"
    assert any(hook in line for line in lines[warning.lineno - 1 : warning.lineno + 1]), warning.lineno


# artifact-registry-python-tools #39: a hook that was removed must not be fatal, and must say what to write instead
def test_a_removed_hook_says_what_to_write_instead(site, states, monkeypatch):
    monkeypatch.setitem(hookspecs.REMOVED, "attnloom_masks", "removed in 0.1; return a Variant from attnloom_variants")
    site.add("old", "from attnloom.hookspecs import hookimpl\n@hookimpl\ndef attnloom_masks(): return []\n")
    site.add("windowed")
    plugins = site.plugins()
    with pytest.raises(
        UnavailableError, match="'attnloom_masks', which is gone: removed in 0.1; return a Variant from"
    ):
        plugins.variant("old")
    assert plugins.variant("windowed") and states(plugins)["old"] == "failed"


# tox #3593: a plugin that uses a newer hook
def test_an_unknown_hook_may_be_that_of_a_newer_release(site):
    site.add("new", "from attnloom.hookspecs import hookimpl\n@hookimpl\ndef attnloom_subcommands(app): pass\n")
    with pytest.raises(PluginError, match="unknown hook 'attnloom_subcommands'.*was it made for a newer attnloom"):
        site.plugins().variant("new")


# conda #12808: generators that pluggy took for wrappers
def test_hooks_may_be_generators(site):
    site.add("lazy", OLD.replace('"old"', '"lazy"'))
    assert site.plugins().variant("lazy").name == "lazy"
    assert tuple(map(int, pluggy.__version__.split(".")[:2])) >= (1, 7)


# blik #169, elastix-napari #39: what is newer than this attnloom and does not concern it is passed by
def test_unknown_metadata_and_groups_are_ignored(site):
    site.add(
        "windowed",
        metadata="Metadata-Version: 9.9\nName: fake-windowed\nVersion: 1.0\nHalf-Life: 3\n",
        entry_points="[attnloom]\nwindowed = fake_fake_windowed.plugin\n[attnloom.provides]\n"
        "variant.windowed = fake_fake_windowed.plugin\n[attnloom.later]\nx = y\n",
    )
    assert site.plugins().variant("windowed").name == "windowed"


class TestFunctorContract:
    def test_a_descriptor_that_says_nothing_claims_the_first_version(self):
        from attnloom.variant import Variant

        variant = Variant(name="a", struct="A", header="a.h", functors={"logits_mask"}, reference="m:a")
        assert variant.abi == 1

    def test_under_a_later_contract_it_is_incompatible_and_never_compiled(self, site, monkeypatch, states):
        monkeypatch.setattr(loading, "ABI", 2)
        site.add("windowed")
        plugins = site.plugins()
        with pytest.raises(UnavailableError, match="functor contract 1, and this attnloom's is 2"):
            plugins.variant("windowed")
        assert states(plugins) == {"windowed": "incompatible"}

    def test_the_contract_is_part_of_the_cache_key(self, monkeypatch):
        from attnloom import jit
        from attnloom.jit import unit

        one = jit.CompileUnit(name="a", sources={"a.cpp": "int a;"})
        chain = jit.host_toolchain()
        before = unit.unit_key(one, chain)
        monkeypatch.setattr(unit, "ABI", 2)
        assert unit.unit_key(one, chain) != before

    @pytest.mark.parametrize("abi", ["1", None, True, 1.0])
    def test_it_is_an_integer(self, abi):
        from attnloom.errors import CompositionError
        from attnloom.variant import Variant

        with pytest.raises(CompositionError, match="abi must be an integer"):
            Variant(name="a", struct="A", header="a.h", functors={"logits_mask"}, reference="m:a", abi=abi)


RELEASE = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


# the usual form of a requirement is compared without packaging, whose import would take longer than the listing
@given(RELEASE, RELEASE, st.sampled_from([">=", "<=", "==", "!=", "<", ">"]))
@settings(max_examples=200, deadline=None)
def test_versions_compare_as_packaging_has_it(version, bound, operator):
    from packaging.specifiers import SpecifierSet

    assert compare(version, operator, bound) == SpecifierSet(f"{operator}{bound}").contains(version)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("attnloom", True), ("attnloom>=0.1,<1", True), ("attnloom (>=0.2)", False), ("attnloom[hf]>=0.1", True),
        ("attnloom~=0.1.0", True), ("attnloom>=0.2; python_version < '3'", True), ("attnloom==0.1.*", True),
        ("attnloom >=0.1 , !=0.1.0", False), ("attnloom>0.1.0rc1", True),
    ],
)  # fmt: skip
def test_requirements_are_read_in_every_form(text, accepted):
    assert (refused(text, "0.1.0") is None) == accepted
