"""The kit as pytest sees it: what may be overridden, what is light, and how outcomes are told apart."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from unittest import SkipTest

import pytest
from attnloom.testing import TileHeuristicSuite, pytest_plugin, run_suite
from attnloom.testing.packages import Package
from attnloom.testing.suite import PluginSuite, check_headers, gpu, overridden


class Kept(TileHeuristicSuite):
    tile_heuristic = "auto"

    def test_of_my_own(self):
        pass


class Explained(Kept):
    @pytest.mark.xfail(reason="it rolls dice on purpose")
    def test_same_problem_same_choice(self):
        super().test_same_problem_same_choice()


class Weakened(Kept):
    def test_choices_say_why(self):
        pass


class Unexplained(Kept):
    @pytest.mark.xfail
    def test_choices_say_why(self):
        pass


class Removed(Kept):
    test_metadata = None


class Blindfolded(Kept):
    def test_nothing_is_overridden(self):
        pass


class Inherits(Weakened):
    pass


@pytest.mark.parametrize("suite", [Kept, Explained])
def test_suites_that_stand(suite):
    assert not list(overridden(suite))


@pytest.mark.parametrize("suite", [Weakened, Unexplained, Removed, Blindfolded, Inherits])
def test_suites_that_are_refused(suite):
    (fault,) = overridden(suite)
    assert "xfail(reason=...)" in fault
    items = [SimpleNamespace(cls=None), SimpleNamespace(cls=suite, obj=print)]
    with pytest.raises(pytest.UsageError, match="overrides a check of the kit"):
        pytest_plugin.pytest_collection_modifyitems(items)


def test_the_gpu_tier_is_marked():
    marks = []
    item = SimpleNamespace(cls=Kept, obj=gpu(lambda self: None), add_marker=marks.append)
    pytest_plugin.pytest_collection_modifyitems([item, SimpleNamespace(cls=Kept, obj=print)])
    assert [mark.name for mark in marks] == ["gpu"]


def test_the_pytest_plugin_is_light():
    code = (
        "import sys, json, attnloom.testing.pytest_plugin\n"
        "print(json.dumps([m for m in ('numpy', 'torch', 'hypothesis', 'attnloom.testing.suite') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_outcomes():
    class Suite(PluginSuite):
        kind = "tile_heuristic"
        tile_heuristic = "auto"

        def test_one(self):
            """What one asks."""

        def test_two(self):
            raise SkipTest("no time")

        def test_three(self):
            raise AssertionError("wrong")

        def test_four(self):
            raise KeyError("gone")

    outcomes = {one.check: one for one in run_suite(Suite, ("one", "two", "three", "four"))}
    told = {check: (one.status, one.message, one.failed) for check, one in outcomes.items()}
    assert told == {
        "one": ("passed", "", False),
        "two": ("skipped", "no time", False),
        "three": ("failed", "wrong", True),
        "four": ("error", "KeyError: 'gone'", True),
    }
    assert outcomes["one"].about == "What one asks."


def test_headers_that_hide_the_systems():
    package = Package(
        origin="the wheel",
        name="x",
        version="1",
        requires=(),
        entry_points={},
        files=frozenset({"x/math.h", "x/mine.h", "x/include/x/string.h"}),
    )
    with pytest.raises(AssertionError, match=r"'x/math\.h', which kernels would include in place of <math\.h>"):
        check_headers(package, "x")
    check_headers(package, "x/include/x/y")


def test_a_suite_without_a_name_says_so():
    suite = type("Nameless", (TileHeuristicSuite,), {})
    (outcome,) = run_suite(suite, ("metadata",))
    assert outcome.failed and 'name what is tested: tile_heuristic = "..."' in outcome.message
