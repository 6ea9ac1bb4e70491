"""Forked children: an OpenMP team does not survive a fork, so a child runs kernels on one thread."""

from __future__ import annotations

import os
import warnings


class _State:
    team_started = False
    crippled = False
    warned = False


def note_team() -> None:
    """Say that this process has run a kernel on several threads."""
    _State.team_started = True


def threads(wanted: int) -> int:
    """`wanted` threads, or 1 in a child that was forked after its parent had started a team; says so once."""
    if not _State.crippled:
        return wanted
    if not _State.warned:
        _State.warned = True
        warnings.warn(
            "this process was forked from one that had run attnloom kernels on several threads, which a fork does not "
            "copy: kernels run on one thread here. Start workers with the 'spawn' method to use all of them.",
            RuntimeWarning,
            stacklevel=4,
        )
    return 1


def _after_fork_in_child() -> None:
    _State.crippled = _State.crippled or _State.team_started


os.register_at_fork(after_in_child=_after_fork_in_child)
