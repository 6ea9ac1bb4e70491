"""Run a suite without pytest: what `attnloom plugins check` does."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from unittest import SkipTest

from attrs import frozen

from attnloom.errors import AttnloomError
from attnloom.testing.suite import PluginSuite


@frozen
class Outcome:
    """How one check ended.

    Attributes:
        check: its name, without `test_`.
        status: `"passed"`, `"skipped"`, `"failed"` or `"error"` (the check itself could not go on).
        about: what the check is for.
        message: why it did not pass.
        seconds: how long it took.
    """

    check: str
    status: str
    about: str
    message: str
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether the plugin is at fault, or the check could not tell."""
        return self.status in ("failed", "error")


def run_suite(suite: type[PluginSuite], only: tuple[str, ...] = ()) -> Iterator[Outcome]:
    """The outcome of each check of the suite, as it ends. A test of the author's own that takes fixtures is pytest's.

    Args:
        only: names of the checks to run (without `test_`); none: all.
    """
    instance = suite()
    for name in checks_of(suite):
        if inspect.signature(getattr(instance, name)).parameters:
            continue
        check = name.removeprefix("test_")
        if only and check not in only:
            continue
        method = getattr(instance, name)
        begin = time.perf_counter()
        status, message = _outcome(method)
        if status in ("failed", "error") and (reason := _expected(method)):
            status, message = "skipped", f"expected to fail: {reason}"
        yield Outcome(check, status, (inspect.getdoc(method) or "").strip(), message, time.perf_counter() - begin)


def checks_of(suite: type[PluginSuite]) -> list[str]:
    """The names of the suite's checks, the general ones first, in the order in which they are written."""
    names = [name for cls in reversed(suite.__mro__) for name in vars(cls) if name.startswith("test_")]
    return list(dict.fromkeys(names))


def _expected(method) -> str:
    """The reason of its `pytest.mark.xfail`, or nothing."""
    marks = (mark for mark in getattr(method, "pytestmark", []) if mark.name == "xfail")
    return next((mark.kwargs["reason"] for mark in marks if mark.kwargs.get("reason")), "")


def _outcome(method) -> tuple[str, str]:
    try:
        method()
    except SkipTest as reason:
        return "skipped", str(reason)
    except (AssertionError, AttnloomError) as error:
        return "failed", str(error)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    return "passed", ""
