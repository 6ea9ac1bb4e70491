"""Writes down every kernel that is compiled, and adds `attnloom journal`, which shows them."""

from attnloom import hookimpl


@hookimpl
def attnloom_kernel_compiled(report):
    """A line of the journal."""
    from attnloom_compile_journal import journal

    journal.add(report)


@hookimpl
def attnloom_commands(register):
    """`attnloom journal`."""
    from attnloom_compile_journal import journal

    register("journal", journal.show)
