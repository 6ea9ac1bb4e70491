"""The hooks, held to their documentation."""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from pathlib import Path

import pytest
from attnloom.hookspecs import HOOKS, AttnloomSpecs
from attnloom.plugins import loading


def example(hook: str) -> str:
    """The code below `Example:` in a hook's docstring."""
    text = inspect.getdoc(getattr(AttnloomSpecs, hook))
    return textwrap.dedent(text.split("Example:\n", 1)[1])


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_in_the_docstring_is_a_whole_plugin(hook):
    module = types.ModuleType(f"example_of_{hook}")
    exec(compile(example(hook), hook, "exec"), module.__dict__)
    manager = loading.new_manager()
    loading.check_hooks(module, manager)
    manager.register(module)
    (implementation,) = getattr(manager.hook, hook).get_hookimpls()
    registered = []
    settings = loading.settings_of(module, manager, {}, "")
    arguments = {"report": "a report", "register": lambda *pair: registered.append(pair), "settings": settings}
    result = loading.call(implementation, **arguments)
    expected = {hook: kind for hook, kind in loading.COLLECTED.values()}
    if hook in expected:
        items = list(result)
        assert items and all(isinstance(item, expected[hook]) for item in items)
    elif hook == "attnloom_settings":
        assert {item.name for item in result} == {"verbose", "slower_than"} and settings.slower_than == 5.0
    elif hook == "attnloom_commands":
        assert registered[0][0] == "hello" and callable(registered[0][1])
    else:
        assert result is None


def test_every_hook_carries_the_prefix_and_is_tested():
    assert set(HOOKS) == {name for name in vars(AttnloomSpecs) if not name.startswith("_")}
    assert all(hook.startswith("attnloom_") for hook in HOOKS)
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert all(re.search(rf"\b{hook}\b", tests) for hook in HOOKS)
