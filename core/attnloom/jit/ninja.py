"""The build of one unit: a ninja graph of its sources, run by the `ninja` package's own binary."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from attrs import frozen

from attnloom.errors import CompileError


@frozen
class BuildResult:
    """What a build said: its exit status (0: built) and everything it printed."""

    status: int
    log: str


def write_graph(
    folder: Path,
    *,
    sources,
    output: str,
    command,
    flags,
    include_dirs,
    system_include_dirs=(),
    link_command=None,
    link_flags=(),
) -> None:
    """Write `build.ninja` into `folder`: `sources` (names in it) are compiled one by one and linked to `output`."""
    compiler = [_shell(word) for word in command]
    linker = [_shell(word) for word in link_command or command]
    includes = [_shell(f"-I{path}") for path in include_dirs]
    for path in system_include_dirs:
        includes += ["-isystem", _shell(path)]
    compile_words = [*compiler, *map(_shell, flags), *includes]
    lines = [
        "ninja_required_version = 1.8",
        "rule compile",
        f"  command = {' '.join(compile_words)} -c $in -o $out",
        "  description = compile $in",
        "rule link",
        f"  command = {' '.join(linker)} $in {' '.join(map(_shell, link_flags))} -o $out",
        "  description = link $out",
        "",
    ]
    objects = []
    for source in sources:
        objects.append(f"{source}.o")
        lines.append(f"build {_path(source)}.o: compile {_path(source)}")
    lines.append(f"build {_path(output)}: link {' '.join(map(_path, objects))}")
    (folder / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(folder: Path) -> BuildResult:
    """Run ninja in `folder`. The compiler speaks English and keeps its temporary files in `folder`."""
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder), "NINJA_STATUS": ""}
    environment.pop("LANGUAGE", None)
    environment.pop("MAKEFLAGS", None)
    jobs = os.environ.get("MAX_JOBS", "")
    command = [binary(), *(["-j", jobs] if jobs.isdigit() and int(jobs) > 0 else []), "-v"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate()
    except BaseException:  # Ctrl-C: ninja ends its compilers when it is asked to, not when it is killed
        process.terminate()
        process.wait()
        raise
    return BuildResult(process.returncode, output.decode("utf-8", errors="replace"))


def binary() -> str:
    """The path of ninja: the `ninja` package's, else the first on PATH."""
    spec = importlib.util.find_spec("ninja")
    if spec is not None:
        import ninja

        packaged = os.path.join(ninja.BIN_DIR, "ninja")
        if os.access(packaged, os.X_OK):
            return packaged
    if found := shutil.which("ninja"):
        return found
    raise CompileError("ninja was found neither as the Python package 'ninja' nor on PATH: pip install ninja")


def _shell(word: str) -> str:
    if "\n" in word:
        raise CompileError(f"a path or flag of a build holds a line break: {word!r}")
    return shlex.quote(word).replace("$", "$$")


def _path(name: str) -> str:
    return name.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
