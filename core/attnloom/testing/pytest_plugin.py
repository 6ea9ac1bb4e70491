"""attnloom's pytest plugin, there wherever attnloom is installed. Light: it imports the kit only if a test did.

It marks the checks that need a GPU (`-m "not gpu"` leaves them out), refuses a suite whose checks are overridden, and
tells at the end how long the plugins' imports took. Fixtures: `attnloom_plugins`, the installed plugins without any
configuration.
"""

from __future__ import annotations

import sys

import pytest


def pytest_configure(config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "gpu: needs a GPU (attnloom)")


def pytest_collection_modifyitems(items) -> None:
    """Mark the GPU tier and refuse overridden checks."""
    suite = sys.modules.get("attnloom.testing.suite")
    if suite is None:
        return
    classes = set()
    for item in items:
        cls = getattr(item, "cls", None)
        if cls is None or not issubclass(cls, suite.PluginSuite):
            continue
        classes.add(cls)
        if getattr(getattr(item, "obj", None), "attnloom_tier", None) == "gpu":
            item.add_marker(pytest.mark.gpu)
    faults = [fault for cls in sorted(classes, key=lambda cls: cls.__qualname__) for fault in suite.overridden(cls)]
    if faults:
        raise pytest.UsageError("\n".join(faults))


def pytest_terminal_summary(terminalreporter) -> None:
    """Tell what the suites measured."""
    suite = sys.modules.get("attnloom.testing.suite")
    for note in dict.fromkeys(suite.notes if suite is not None else ()):
        terminalreporter.write_line(f"attnloom: {note}")


@pytest.fixture
def attnloom_plugins():
    """A fresh `PluginSet` of the installed plugins, without the user's configuration."""
    from attnloom.plugins import Config, PluginSet

    return PluginSet.from_config(Config())
