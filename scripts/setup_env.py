"""Make a virtual environment with torch, the project and its plugins. `make test` and `make demo` both start here.

    python3 scripts/setup_env.py --venv .venv --extras all,testing,dev,hf

A torch that can be imported already is kept. Otherwise `TORCH` says which to install (a requirement, or any arguments
of `pip install`). Without it, on Linux without an NVIDIA driver, the CPU build is tried first: the name `+cpu` can
never resolve to a CUDA build of several gigabytes. Run again it installs only what has changed. Needs only Python.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
OLDEST_TORCH = (2, 6)
TORCH_FOR_CPU = ("torch==2.13.0+cpu", "torch==2.13.0", "torch>=2.6")
TORCH_SIZE = "the build for CUDA: about 0.6 GB, and some 2 GB more of NVIDIA libraries"
METADATA = ("*.toml", "hatch_build.py", "plugins/*/*/*.toml", "storage_formats/*/*.toml")
SOURCES = (*METADATA, "README.md", "core/**/*", "scheduler/**/*", "plugins/*/*/src/**/*", "storage_formats/*/src/**/*")


def main() -> None:
    """Check the machine, then make or refresh the environment."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where the environment lies")
    arguments.add_argument("--extras", default="all,testing,dev,hf", help="extras of the project, comma-separated")
    arguments.add_argument("--editable", action="store_true", help="install in editable form, and stay so")
    options = arguments.parse_args()
    use_a_python_that_fits()
    check_compiler()
    python = make_environment(options.venv.absolute())
    install_torch(python)
    install_project(python, options.venv.absolute(), set(options.extras.split(",")), options.editable)


def use_a_python_that_fits() -> None:
    """Go on under another interpreter where this one is too old or too new."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            os.execv(path, [path, *sys.argv])
    stop(
        f"this is Python {platform.python_version()}; attnloom needs 3.{OLDEST[1]} to 3.{NEWEST[1]}: "
        "install one, or name it: make PYTHON=/path/to/python3 ..."
    )


def check_compiler() -> None:
    """Stop where there is no C++ compiler: kernels for this machine could not be built."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if not any(shutil.which(shlex.split(candidate)[0]) for candidate in candidates):
        stop(
            f"no C++ compiler ({' or '.join(candidates)}) on the PATH, and attnloom compiles its kernels when they are "
            "first used. Install g++ 11 or newer, or clang++ 14 or newer (Debian, Ubuntu: apt install g++; Fedora: "
            "dnf install gcc-c++; macOS: xcode-select --install), or name one in CXX"
        )


def make_environment(venv: Path) -> Path:
    """The Python of the environment, which is made if it is missing or broken."""
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if python.exists() and succeeds(python, "-c", "import pip"):
        return python
    say(f"making {venv} with Python {platform.python_version()}")
    site = site_of_torch()
    in_venv = sys.prefix != sys.base_prefix
    shared = ["--system-site-packages"] if site and not in_venv else []
    if subprocess.run([sys.executable, "-m", "venv", "--clear", *shared, str(venv)], check=False).returncode:
        stop("python -m venv failed; on Debian and Ubuntu: apt install python3-venv")
    if site and in_venv:
        # The environment of an environment does not see its packages; torch stays usable through its folder.
        folder = output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        Path(folder, "torch_of_the_parent.pth").write_text(site + "\n", encoding="utf-8")
    return python


def site_of_torch() -> str:
    """The folder from which this interpreter imports torch, or nothing."""
    code = "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))"
    return output(Path(sys.executable), "-c", code)


def install_torch(python: Path) -> None:
    """Install torch unless one that is new enough can be imported."""
    present = output(python, "-c", "import torch; print(torch.__version__)")
    wish = os.environ.get("TORCH", "").strip()
    if present and version(present) >= OLDEST_TORCH and not wish:
        say(f"keeping torch {present}")
        return
    if wish:
        attempts = [shlex.split(wish)]
    elif sys.platform == "linux" and not has_nvidia_driver():
        attempts = [[requirement] for requirement in TORCH_FOR_CPU]
    else:
        attempts = [[TORCH_FOR_CPU[-1]]]
    for attempt in attempts:
        large = sys.platform == "linux" and attempt[0] in TORCH_FOR_CPU[1:] and platform.machine() == "x86_64"
        say(
            f"installing {shlex.join(attempt)}"
            + (f" (possibly {TORCH_SIZE}; TORCH=... chooses another)" if large else "")
        )
        if pip(python, "install", *attempt, check=False, quiet=False):
            return
        if attempt is not attempts[-1]:
            say("there is no such build here, which does no harm")
    stop("torch could not be installed; name one that can: make TORCH='torch==2.6.0' ...")


def has_nvidia_driver() -> bool:
    """Whether an NVIDIA driver is loaded."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def install_project(python: Path, venv: Path, extras: set[str], editable: bool) -> None:
    """Install the project with `extras`, unless these sources are installed with them already."""
    stamp = venv / "attnloom-installed.json"
    try:
        last = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = {}
    wanted = {
        "extras": sorted(extras | set(last.get("extras", ()))),
        "editable": editable or last.get("editable", False),
    }
    wanted["sources"] = digest(METADATA if wanted["editable"] else SOURCES)
    if last == wanted:
        say("the project is installed as it is here")
        return
    started = time.monotonic()
    stamp.unlink(missing_ok=True)
    say(f"installing attnloom with {', '.join(wanted['extras'])}")
    # One build backend for a dozen small packages instead of an environment for each.
    pip(python, "install", "hatchling>=1.27", "editables>=0.5")
    pip(python, "install", "--no-build-isolation", *requirements(set(wanted["extras"]), wanted["editable"]))
    stamp.write_text(json.dumps(wanted), encoding="utf-8")
    say(f"installed in {time.monotonic() - started:.0f} s")


def requirements(extras: set[str], editable: bool) -> list[str]:
    """What to ask pip for."""
    if not editable:
        return [f"{ROOT}[{','.join(sorted(extras))}]"]
    named = ["-e", f"{ROOT}[{','.join(sorted(extras - {'all'}))}]"]
    for pyproject in sorted(ROOT.glob("plugins/builtin/*/pyproject.toml")) + sorted(
        ROOT.glob("storage_formats/*/pyproject.toml")
    ):
        named += ["-e", str(pyproject.parent)]
    return named


def digest(patterns: tuple[str, ...]) -> str:
    """A hash of the files that match any of the patterns."""
    total = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern)}):
        if path.is_file() and path.suffix != ".pyc":
            total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def version(text: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, minor = re.findall(r"\d+", text)[:2]
    return int(major), int(minor)


def pip(python: Path, *arguments: str, check: bool = True, quiet: bool = True) -> bool:
    """Run pip in the environment; true if it succeeded, and an end to all if it had to."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments, *(["--quiet"] if quiet else [])]
    succeeded = subprocess.run(command, check=False, cwd=ROOT).returncode == 0
    if check and not succeeded:
        stop(f"failed: {shlex.join(command)}")
    return succeeded


def succeeds(python: Path, *arguments: str) -> bool:
    """Whether a command of the interpreter ends well."""
    try:
        return subprocess.run([str(python), *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def output(python: Path, *arguments: str) -> str:
    """What a command of the interpreter prints last, or nothing if it fails."""
    done = subprocess.run([str(python), *arguments], capture_output=True, text=True, check=False, cwd=ROOT / "scripts")
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else ""


def say(text: str) -> None:
    """A line of progress."""
    print(f"setup: {text}", flush=True)


def stop(text: str) -> None:
    """End with an explanation."""
    sys.exit(f"setup: error: {text}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("setup: interrupted; run it again, and it goes on from here")
