"""Two plugins with one name: an error that names both, until the configuration prefers one."""

from __future__ import annotations

import sys

import pytest
from attnloom.errors import PluginError, UnavailableError
from attnloom.plugins import Config, PluginSet

FORMAT = """
from attnloom.hookspecs import hookimpl
from attnloom.index import StorageFormat

"""


# xarray #5944, fsspec PR #1389: two real distributions, no silent winner
class TestClash:
    def both(self, site):
        site.add("rope", distribution="zz-rope", version="1.0")
        site.add("rope", distribution="aa-rope", version="2.0")
        return site

    def test_use_is_an_error_that_names_both(self, site):
        plugins = self.both(site).plugins()
        for _ in range(2):
            with pytest.raises(
                PluginError, match=r"rope \(aa-rope 2.0\) and rope \(zz-rope 1.0\).*prefer.*variant:rope"
            ):
                plugins.variant("rope")
        assert list(plugins.clashes()) == [("variant", "rope")]
        assert len(plugins.records()) == 3
        assert not [name for name in sys.modules if name.startswith("fake_")]

    @pytest.mark.parametrize("choice", ["zz-rope", "aa_rope"])
    def test_prefer_decides(self, site, choice):
        from attnloom.plugins.naming import plugin_key

        config = Config.from_mapping({"prefer": {"variant:rope": choice}})
        plugins = PluginSet.from_config(config, paths=[str(self.both(site).path)])
        assert plugins.provider("variant", "rope").is_called(plugin_key(choice))
        assert plugins.variant("rope").package == f"fake_{plugin_key(choice)}"
        assert plugins.clashes() == {}

    def test_disabling_one_decides(self, site):
        assert self.both(site).plugins(disable=("zz_rope",)).variant("rope").package == "fake_aa_rope"

    def test_a_preferred_plugin_that_is_broken_gives_no_way_to_the_other(self, site):
        site.add("rope", "1 / 0", distribution="zz-rope")
        site.add("rope", distribution="aa-rope")
        with pytest.raises(UnavailableError, match="zz-rope.*ZeroDivisionError"):
            site.plugins(prefer={"variant:rope": "zz_rope"}).variant("rope")

    @pytest.mark.parametrize("offers", ["rope", "other"])
    def test_a_preferred_plugin_that_does_not_provide_it_is_told_on_use(self, site, states, offers):
        site.add(offers, distribution="aa-rope")
        site.add("alibi", distribution="bb-alibi")
        plugins = site.plugins(prefer={"variant:rope": "alibi"})
        assert states(plugins) == {offers: "found", "alibi": "found"}
        with pytest.raises(PluginError, match=r"'variant:rope' is to come from 'alibi'.*bb-alibi.*variant:alibi"):
            plugins.variant(offers)
        assert states(plugins) == {offers: "found", "alibi": "found"}

    def test_a_command_is_preferred_before_it_is_known(self, site):
        site.add("p")
        assert site.plugins(prefer={"command:x": "p"}).variant("p").name == "p"

    def test_names_of_different_kinds_do_not_clash(self, site):
        site.add("p")
        body = "@hookimpl\ndef attnloom_storage_formats(): return [StorageFormat(name='p', builder='m:a')]"
        site.add("q", FORMAT + body, provides=("storage_format.p",))
        plugins = site.plugins()
        assert plugins.variant("p").name == plugins.storage_format("p").name == "p"
