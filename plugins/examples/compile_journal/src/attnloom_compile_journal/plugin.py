"""Writes down every kernel that is compiled, and adds `attnloom journal`, which shows them."""

from attnloom import Setting, hookimpl


@hookimpl
def attnloom_settings():
    """Where the journal lies: `[tool.attnloom.plugin.compile_journal]` `path = "~/kernels.jsonl"`."""
    yield Setting("path", str, default="", doc="File of the journal; empty: in the user's state folder.")


@hookimpl
def attnloom_kernel_compiled(report, settings):
    """A line of the journal."""
    from attnloom_compile_journal.journal import Journal

    Journal(settings.path).add(report)


@hookimpl
def attnloom_commands(register, settings):
    """`attnloom journal`."""

    def journal(last: int = 20):
        """Show the kernels that were compiled last."""
        from attnloom_compile_journal.journal import Journal

        Journal(settings.path).show(last)

    register("journal", journal)
