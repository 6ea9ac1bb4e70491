"""What is known of one plugin."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from attrs import define, field

import attnloom

KINDS = ("variant", "storage_format", "tile_heuristic")
"""What a plugin can provide; the group `attnloom.provides` names each contribution `kind.name`."""


class State(StrEnum):
    """Where a plugin stands in this process."""

    FOUND = "found"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"
    FAILED = "failed"
    LOADED = "loaded"


@define(eq=False, kw_only=True)
class PluginRecord:
    """One plugin, as its metadata and its loading describe it.

    Attributes:
        name: the plugin's name, the key of its entry point.
        distribution: canonical name of the distribution that brings it.
        version: that distribution's version.
        module: the module with its hooks.
        provides: `(kind, name)` of each contribution that the metadata declares, sorted.
        location: where its metadata lies.
        state: see `State`.
        reason: why it is disabled, incompatible or failed; else empty.
        error: the exception behind `reason`, or none.
        offers: whether its contributions count: false once it is disabled, incompatible or failed before its import.
        named: whether the configuration names it (`enable`, `required`, `[plugin.NAME]`, `ATTNLOOM_PLUGINS`): a failure
            is then fatal.
    """

    name: str
    distribution: str
    version: str
    module: str
    provides: tuple[tuple[str, str], ...] = ()
    location: str = ""
    state: State = State.FOUND
    reason: str = ""
    error: BaseException | None = field(default=None, repr=False)
    offers: bool = True
    named: bool = False

    @property
    def package(self) -> str:
        """The import package whose folder holds the plugin's headers: the one that its module lies in."""
        return self.module.rpartition(".")[0] or self.module

    @property
    def key(self) -> str:
        """What tells the plugin from any other: `attnloom-rope:rope`."""
        return f"{self.distribution}:{self.name}"

    @property
    def label(self) -> str:
        """The plugin for a message: `rope (attnloom-rope 0.1.0)`."""
        return f"{self.name} ({self.distribution} {self.version})"

    @property
    def status(self) -> str:
        """Its state in a sentence: `plugin rope (attnloom-rope 0.1.0) failed under attnloom 0.1.0: <reason>`."""
        verb = f"failed under attnloom {attnloom.__version__}" if self.state is State.FAILED else f"is {self.state}"
        return f"plugin {self.label} {verb}" + (f": {self.reason}" if self.reason else "")

    def is_called(self, name: str) -> bool:
        """Whether a canonical `name` means this plugin: its own name or its distribution's."""
        return name in (self.name, self.distribution.replace("-", "_").replace(".", "_"))

    def set_aside(self, state: State, reason: str, error: BaseException | None = None) -> None:
        """Record that the plugin cannot be used, before anything of it was imported."""
        self.state, self.reason, self.error, self.offers = state, reason, error, False

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `attnloom plugins list --json`."""
        return {
            "name": self.name,
            "distribution": self.distribution,
            "version": self.version,
            "state": str(self.state),
            "reason": self.reason,
            "provides": [f"{kind}.{name}" for kind, name in self.provides],
            "module": self.module,
            "package": self.package,
            "location": self.location,
        }
