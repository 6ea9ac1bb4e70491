"""`attnloom plugins new`: a complete plugin package, from templates that the wheel brings."""

from __future__ import annotations

import keyword
import re
import shutil
from pathlib import Path

from attrs import frozen

from attnloom import __version__
from attnloom.errors import PluginError
from attnloom.plugins.naming import canonicalize_name, normalize_name, plugin_key
from attnloom.plugins.pluginset import PluginSet
from attnloom.plugins.record import KINDS
from attnloom.testing.system_headers import STANDARD_HEADERS
from attnloom.variant import _CPP_RESERVED, NAME

TEMPLATES = Path(__file__).parent / "templates"

COMMON = {
    "pyproject.toml": "common/pyproject.toml",
    ".gitignore": "common/gitignore",
    ".github/workflows/test.yml": "common/test.yml",
    "src/@package@/__init__.py": "common/init.py",
}
FILES = {
    "variant": {
        "README.md": "variant/README.md",
        "src/@package@/plugin.py": "variant/plugin.py",
        "src/@package@/@name@.h": "variant/variant.h",
        "src/@package@/reference.py": "variant/reference.py",
        "tests/test_@name@.py": "variant/test.py",
    },
    "storage_format": {
        "README.md": "storage_format/README.md",
        "src/@package@/plugin.py": "storage_format/plugin.py",
        "src/@package@/build.py": "storage_format/build.py",
        "src/@package@/example.py": "storage_format/example.py",
        "tests/test_@name@.py": "storage_format/test.py",
    },
    "tile_heuristic": {
        "README.md": "tile_heuristic/README.md",
        "src/@package@/plugin.py": "tile_heuristic/plugin.py",
        "src/@package@/choose.py": "tile_heuristic/choose.py",
        "tests/test_@name@.py": "tile_heuristic/test.py",
    },
}
"""The files of a package of each kind, beside those of `COMMON`: where they go, and their templates."""


@frozen
class Names:
    """What a new plugin goes by, from its name: `my_window`, `attnloom-my-window`, `attnloom_my_window`, `MyWindow`."""

    name: str

    @property
    def distribution(self) -> str:
        """The name of the distribution and of its folder."""
        return f"attnloom-{self.name.replace('_', '-')}"

    @property
    def package(self) -> str:
        """The import package."""
        return f"attnloom_{self.name}"

    @property
    def struct(self) -> str:
        """The C++ struct and the reference class."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    def placeholders(self, kind: str) -> dict[str, str]:
        """What the templates' placeholders stand for."""
        major, minor = __version__.split(".")[:2]
        return {
            "@name@": self.name,
            "@NAME@": self.name.upper(),
            "@dist@": self.distribution,
            "@package@": self.package,
            "@Struct@": self.struct,
            "@kind@": kind,
            "@kind words@": kind.replace("_", " "),
            "@requires@": f"attnloom>={major}.{minor},<{int(major) + 1}",
        }


def write_plugin(name: str, kind: str, parent: Path, plugins: PluginSet | None = None) -> Path:
    """Write the package of a new plugin.

    Args:
        name: what users will name in a spec; `-` and `_` are one, and a leading `attnloom-` is dropped.
        kind: one of `KINDS`; `-` for `_` is fine.
        parent: the folder in which the package's folder, `attnloom-NAME`, is made.
        plugins: where taken names are looked up; none: everything installed.

    Returns:
        the package's folder.

    Raises:
        PluginError: a kind or name that cannot be, a name that is taken, or a folder that exists. Nothing is written.
    """
    kind = normalize_name(kind)
    if kind not in KINDS:
        known = ", ".join(one.replace("_", "-") for one in KINDS)
        raise PluginError(f"kind {kind!r} is none of {known}")
    names = Names(plugin_name(name))
    check_free(names, kind, PluginSet.default() if plugins is None else plugins)
    folder = Path(parent) / names.distribution
    if folder.exists() or folder.is_symlink():
        raise PluginError(f"{folder} exists already; nothing was written. Remove it, or take another name or --dir")
    files = render(names, kind)
    if not Path(parent).is_dir():
        raise PluginError(f"{parent} is no folder; make it first")
    try:
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise PluginError(
            f"{folder} cannot be written: {error.strerror or error}; name another folder with --dir"
        ) from error
    return folder


def plugin_name(name: str) -> str:
    """The canonical spelling of a new plugin's name. Raises `PluginError` for one that cannot be."""
    text = plugin_key(name).removeprefix("attnloom_")
    if not NAME.match(text) or "__" in text or text.endswith("_"):
        raise PluginError(
            f"name {name!r} must be a letter, then letters, digits and single `-` or `_`, such as sliding-window"
        )
    if text in _CPP_RESERVED or keyword.iskeyword(text) or keyword.issoftkeyword(text):
        raise PluginError(f"name {name!r} is a reserved word of C++ or Python; take another")
    if text in STANDARD_HEADERS:
        raise PluginError(f"name {name!r} is that of a system's header, {text}.h, which yours would hide; take another")
    if keyword.iskeyword(Names(text).struct):
        raise PluginError(
            f"name {name!r} makes a class {Names(text).struct!r}, a reserved word of Python; take another"
        )
    if len(text) > 60:
        raise PluginError(f"name {name!r} has {len(text)} characters; take one of at most 60")
    return text


def check_free(names: Names, kind: str, plugins: PluginSet) -> None:
    """Raise `PluginError` where the core or something installed has the name already."""
    for record in plugins.records():
        if (kind, names.name) in record.provides:
            raise PluginError(f"{kind.replace('_', ' ')} {names.name!r} is taken: {record.label} provides it")
        if record.name == names.name or record.distribution == canonicalize_name(names.distribution):
            raise PluginError(f"plugin {names.name!r} is taken: {record.label} is installed; take another name")
    from importlib.util import find_spec

    if find_spec(names.package) is not None:
        raise PluginError(f"a package {names.package!r} can be imported here already; take another name")


def render(names: Names, kind: str) -> dict[str, str]:
    """The files of a package: path, text."""
    placeholders = names.placeholders(kind)
    return {
        fill(path, placeholders): fill((TEMPLATES / f"{template}.tmpl").read_text(encoding="utf-8"), placeholders)
        for path, template in {**COMMON, **FILES[kind]}.items()
    }


def fill(text: str, placeholders: dict[str, str]) -> str:
    """`text` with its placeholders replaced."""
    return re.sub(r"@[A-Za-z]+(?: words)?@", lambda match: placeholders[match[0]], text)
