"""Where in a plugin's own code an exception came from, for messages that an author can act on."""

from __future__ import annotations

import traceback

from attnloom.plugins.discovery import describe


def told_with_place(error: BaseException, package: str) -> str:
    """An exception in one line, with the file and line of the plugin's code that it came from where there is one."""
    place = place_of(error, package)
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}" + (f" ({place})" if place else "")
    return describe(error) + (f" ({place})" if place else "")


def place_of(error: BaseException, package: str) -> str:
    """`file:line` of the last frame in the plugin's own code, or nothing."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    top = package.partition(".")[0]
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == top:
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def of_import(error: BaseException, module: str) -> str:
    """Why importing a plugin's module failed, and what to do where that can be told."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and (module == missing or module.startswith(f"{missing}.")):
        return (
            f"its entry point names the module {module!r}, and there is no {missing!r}: spell it in pyproject.toml as "
            "in the source, let the wheel hold it, and install again"
        )
    told = f"its import raised {told_with_place(error, module)}"
    if missing:
        told += f"; name what provides {missing.partition('.')[0]!r} in the dependencies of its pyproject.toml"
    return told
