"""The hooks of attnloom: what a plugin may offer.

A plugin is a distribution whose entry-point group `attnloom` names a light module (no torch, no compiler at import),
and whose group `attnloom.provides` names each contribution, so that listing and look-up import nothing:

    [project.entry-points.attnloom]
    soft_cap = "attnloom_soft_cap.plugin"

    [project.entry-points."attnloom.provides"]
    "variant.soft_cap" = "attnloom_soft_cap.plugin"

The module defines any of the functions below, each marked with `hookimpl`. A hook that returns something that the
distribution does not declare, or not what it declares, marks the plugin as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from attnloom.index import StorageFormat
    from attnloom.settings import Setting, Settings
    from attnloom.tile import TileHeuristic
    from attnloom.variant import Variant

hookspec = pluggy.HookspecMarker("attnloom")
hookimpl = pluggy.HookimplMarker("attnloom")
"""Marks a plugin's function as the implementation of the hook of the same name."""


class AttnloomSpecs:
    """Every hook. A plugin implements the ones that it needs and may leave out arguments.

    Each hook may take `settings`, the plugin's own, as the configuration gives them (see `attnloom_settings`).
    """

    @hookspec
    def attnloom_settings(self) -> Iterable[Setting]:
        """Settings: what a user may write in the plugin's table `[tool.attnloom.plugin.NAME]` of the configuration.

        Called once a process and plugin set, before the other hooks, when the plugin is loaded. A key that is not
        declared here, and a value of another type, is an error that names the file and the key. The other hooks get
        the values as their argument `settings`; to reach a builder or a tile rule, they go into `options` of the
        descriptor. Settings are scalars; what changes numbers should be a parameter of a variant instead, which
        `attnloom explain` shows.

        Example:

            from attnloom import Setting, hookimpl

            @hookimpl
            def attnloom_settings():
                yield Setting("verbose", bool, default=False, doc="Tell of every kernel, not only of slow ones.")
                yield Setting("slower_than", float, default=5.0, doc="Seconds from which a compile is told of.")

            @hookimpl
            def attnloom_kernel_compiled(report, settings):
                if settings.verbose or report.seconds > settings.slower_than:
                    print(report.name, report.seconds)
        """
        raise NotImplementedError

    @hookspec
    def attnloom_variants(self, settings: Settings) -> Iterable[Variant]:
        """Attention variants: C++ functors with named parameters and a float64 reference.

        Called once a process, when one of the declared variants is first asked for. The header lies beside the plugin
        module; the reference is imported only by tests and by `attention` in debug mode.

        Example:

            from attnloom import hookimpl
            from attnloom.variant import Param, Variant

            @hookimpl
            def attnloom_variants():
                yield Variant(
                    name="soft_cap",
                    struct="SoftCap",
                    header="soft_cap.h",
                    functors={"logits_transform"},
                    params=[Param("cap", float, default=50.0, doc="Bound of the logits; Gemma 2 uses 50.")],
                    reference="attnloom_soft_cap.reference:SoftCap",
                    doc="cap * tanh(logit / cap), the logit soft-capping of Gemma 2.",
                )
        """
        raise NotImplementedError

    @hookspec
    def attnloom_storage_formats(self, settings: Settings) -> Iterable[StorageFormat]:
        """Storage formats: named functions that turn a cache manager's data into a block-sparse index.

        Called once a process, when one of the declared formats is first asked for. The builder is imported when it is
        first called.

        Example:

            from attnloom import hookimpl
            from attnloom.index import StorageFormat

            @hookimpl
            def attnloom_storage_formats():
                yield StorageFormat(
                    name="page_table",
                    builder="attnloom_page_table.builder:build_index",
                    doc="Needs block_tables, i32 [requests, max_pages].",
                )
        """
        raise NotImplementedError

    @hookspec
    def attnloom_tile_heuristics(self, settings: Settings) -> Iterable[TileHeuristic]:
        """Tile heuristics: named rules that choose the kernel's tile classes.

        Used where a spec says `tile="its name"`, or for every `tile="auto"` if the configuration prefers it by
        `[tool.attnloom.prefer]` `tile = "its name"`. A rule that returns none leaves the choice to the core; so does,
        with one warning, a rule that raises or returns tiles that no kernel has. `attnloom explain` shows it.

        Example:

            from attnloom import hookimpl
            from attnloom.tile import Tile, TileChoice, TileHeuristic

            def choose(problem):
                if problem.family != "host":
                    return None
                return TileChoice(short=Tile(16, 64), why=["measured on a laptop"])

            @hookimpl
            def attnloom_tile_heuristics():
                yield TileHeuristic(name="laptop", choose=f"{__name__}:choose", doc="Small caches.")
        """
        raise NotImplementedError

    @hookspec
    def attnloom_kernel_compiled(self, report: Any, settings: Settings) -> None:
        """Observe that a kernel (or the launcher, or the scheduler) was compiled. What the cache holds is not told.

        An observer can change nothing: what it returns is ignored and what it raises is logged once. Called for plugins
        that are loaded, that the configuration names, or that declare no contribution.

        Args:
            report: an `attnloom.jit.CompileReport` (name, kind, detail, key, path, seconds, compiler, flags, owners,
                resources).

        Example:

            import logging

            from attnloom import hookimpl

            @hookimpl
            def attnloom_kernel_compiled(report):
                logging.getLogger("compile_log").info("%s", report)
        """
        raise NotImplementedError

    @hookspec
    def attnloom_commands(self, register: Callable, settings: Settings) -> None:
        """Add subcommands to the `attnloom` command.

        Called only for `attnloom --help` and for a subcommand that the core does not know.

        Args:
            register: called as `register(name, command)`; the command is a function with typer's annotations, or a
                `typer.Typer` with subcommands of its own.

        Example:

            from attnloom import hookimpl

            @hookimpl
            def attnloom_commands(register):
                def hello(name: str = "world"):
                    "Greet somebody."
                    print(f"hello, {name}")

                register("hello", hello)
        """
        raise NotImplementedError


HOOKS = tuple(name for name in vars(AttnloomSpecs) if name.startswith("attnloom_"))
"""The name of every hook."""

REMOVED: dict[str, str] = {}
"""Hooks of earlier releases: name -> in which version it went and what to write instead. None has gone yet."""
