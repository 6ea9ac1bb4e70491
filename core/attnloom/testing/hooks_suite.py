"""What a plugin is held to that provides no variant, format or heuristic: commands, or an observer."""

from __future__ import annotations

from unittest import SkipTest

from attnloom.errors import PluginError
from attnloom.plugins.naming import plugin_key
from attnloom.testing.suite import PluginSuite


class HooksSuite(PluginSuite):
    """Subclass it in a test file and name the plugin: `plugin = "..."`."""

    kind = "plugin"
    plugin: str

    @property
    def record(self):
        """The `PluginRecord`."""
        found = [record for record in self.plugin_set.records() if record.name == plugin_key(self.name)]
        if not found:
            raise PluginError(f"no plugin {self.name!r} is installed")
        return found[0]

    @property
    def descriptor(self):
        """None: it has none."""
        raise SkipTest("the plugin returns no descriptor")

    def test_no_other_plugin_has_the_name(self):
        """No other installed distribution brings a plugin of this name."""
        named = [record.label for record in self.plugin_set.records() if record.name == plugin_key(self.name)]
        assert len(named) == 1, f"{' and '.join(named)} have one name; take another"

    def test_loads(self):
        """The module can be imported and its hooks are right."""
        self.plugin_set.commands()
        assert self.record.state == "loaded", self.record.status

    def test_commands(self):
        """Each command is a function or a `typer.Typer`, with a help text."""
        import typer

        offered = {name: offers for name, offers in self.plugin_set.commands().items()}
        own = {n: command for n, offers in offered.items() for label, command in offers if label == self.record.label}
        if not own:
            raise SkipTest("the plugin adds no command")
        for name, command in own.items():
            help_text = command.info.help if isinstance(command, typer.Typer) else command.__doc__
            assert callable(command), f"command {name!r} is {command!r}, neither a function nor a typer.Typer"
            assert isinstance(help_text, str) and help_text.strip(), (
                f"command {name!r} has no help: give it a docstring"
            )
