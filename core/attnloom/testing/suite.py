"""What every plugin is held to, whatever it provides; the suites of the three kinds derive from `PluginSuite`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

from packaging.requirements import Requirement

from attnloom.errors import PluginError
from attnloom.plugins import Config, PluginSet
from attnloom.plugins.discovery import GROUP, PROVIDES
from attnloom.plugins.naming import canonicalize_name, plugin_key
from attnloom.plugins.record import KINDS
from attnloom.resolve import resolve
from attnloom.testing.packages import Package, build_wheel, project_folder, read_installed, read_wheel
from attnloom.testing.system_headers import STANDARD_HEADERS

IMPORT_SECONDS = 0.5
"""What the import of a plugin module may take, generous enough for a busy machine; it should be a few milliseconds."""

notes: list[str] = []
"""What the suites measured, for the summary of a test run."""


def gpu(check: Callable) -> Callable:
    """Marks a check that needs a GPU."""
    check.attnloom_tier = "gpu"
    return check


class PluginSuite:
    """The checks that all kinds share. Methods named `test_*` are the checks; the others may be overridden.

    Attributes:
        kind: `"variant"`, `"storage_format"`, `"tile_heuristic"`, or `"plugin"` for one that provides none of them.
        plugins: the `PluginSet` to look in; none: the installed plugins, without the user's configuration.
        wheel: a wheel of the distribution that is built already; none: one is built where the sources are known.
    """

    kind: ClassVar[str]
    plugins: ClassVar[PluginSet | None] = None
    wheel: ClassVar[Path | None] = None

    # What the checks look at

    @property
    def name(self) -> str:
        """The name of what is tested."""
        name = getattr(self, self.kind, None)
        if not isinstance(name, str):
            raise PluginError(f'{type(self).__name__}: name what is tested: {self.kind} = "..."')
        return name

    @property
    def plugin_set(self) -> PluginSet:
        """The plugins that names are looked up in."""
        if type(self).plugins is not None:
            return type(self).plugins
        return self.once("plugins", lambda: PluginSet.from_config(Config()))

    @property
    def record(self):
        """The `PluginRecord` of the plugin that provides it."""
        return self.plugin_set.provider(self.kind, self.name)

    def package(self) -> Package:
        """The distribution, read from a wheel built from its sources; from the installation where there are none."""
        return self.once("package", self._read_package)

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """`make()`, called once a class: the checks of a suite share what is slow to make."""
        shared = type(self).__dict__.get("_shared")
        if shared is None:
            shared = type(self)._shared = {}
        if key not in shared:
            shared[key] = make()
        return shared[key]

    def _read_package(self) -> Package:
        if type(self).wheel is not None:
            return read_wheel(type(self).wheel)
        distribution = self.record.distribution
        module = sys.modules.get(type(self).__module__)
        start = Path(getattr(module, "__file__", None) or ".").resolve().parent
        if (folder := project_folder(start, distribution)) is None:
            return read_installed(distribution)
        with tempfile.TemporaryDirectory() as target:
            return read_wheel(build_wheel(folder, Path(target)))

    # The checks

    def test_nothing_is_overridden(self):
        """A check stands as it is, or is marked `xfail` with a reason."""
        assert not (found := list(overridden(type(self)))), "; ".join(found)

    def test_metadata(self):
        """The wheel declares the plugin, what it provides and which attnloom it was made for, and holds its files."""
        package, record = self.package(), self.record
        if record.distribution == "attnloom":
            raise SkipTest("the core's own contributions have no entry points")
        declared = package.entry_points
        modules = declared.get(GROUP, {})
        assert record.module in modules.values(), (
            f"{package.origin} has no entry point of group {GROUP!r} with the module {record.module!r}, only {modules}"
        )
        if self.kind in KINDS:
            self._check_provided(package)
        check_requirement(package)
        if package.files:
            check_files(package, [record.module, *self.modules()], self.resources())
            for folder in {path.rpartition("/")[0] for path in self.resources()}:
                check_headers(package, folder)

    def _check_provided(self, package: Package) -> None:
        declared, module = package.entry_points.get(PROVIDES, {}), self.record.module
        provided = {plugin_key(key): value for key, value in declared.items()}
        assert provided.get(f"{self.kind}_{self.name}") == module, (
            f'{package.origin} does not declare "{self.kind}.{self.name}" = "{module}" in group {PROVIDES!r}'
        )

    def modules(self) -> list[str]:
        """The modules that the descriptor names."""
        return []

    def resources(self) -> list[str]:
        """Other files that the wheel must hold, as paths."""
        return []

    def test_no_other_plugin_has_the_name(self):
        """No other installed distribution provides it, nor the core."""
        offering = [r.label for r in self.plugin_set.records() if (self.kind, self.name) in r.provides]
        assert len(offering) == 1, (
            f"{self.kind.replace('_', ' ')} {self.name!r} is provided by {' and by '.join(offering)}: "
            "users would have to choose in [prefer]; take another name"
        )

    def test_import_is_light(self):
        """The plugin module brings no torch, numpy or compiler, prints nothing, and is quick. The time is reported."""
        report = self._probes()[0]
        module = self.record.module
        notes.append(f"import {module}: {1e3 * report['seconds']:.1f} ms, {report['modules']} modules")
        assert not report["heavy"], (
            f"importing {module} imports {', '.join(report['heavy'])}; import them where they are used, and name code "
            'as "module:attr" in descriptors'
        )
        assert not report["said"], f"importing {module} prints {report['said']!r}"
        assert report["seconds"] < IMPORT_SECONDS, f"importing {module} takes {report['seconds']:.2f} s"

    def test_hash_seeds_change_nothing(self):
        """Two processes with other hash seeds get the same text, cache key, index or choice."""
        one, other = self._probes()
        assert one["fingerprint"] == other["fingerprint"], (
            f"{self.kind.replace('_', ' ')} {self.name!r} differs from process to process with PYTHONHASHSEED: "
            "something in it follows the order of a set or a hash; sort it"
        )

    def test_descriptor(self):
        """The descriptor is documented, pickles, and all that it names can be imported."""
        import pickle

        descriptor = self.descriptor
        assert descriptor.doc.strip(), f"{self.kind} {self.name!r} has no doc: one line of what it is and its source"
        assert pickle.loads(pickle.dumps(descriptor)) == descriptor
        for label, path in self.named_code():
            try:
                found = resolve(path)
            except (ImportError, AttributeError) as error:
                raise AssertionError(
                    f"{self.kind} {self.name!r}: {label} {path!r} cannot be imported: {error}"
                ) from error
            assert callable(found), f"{self.kind} {self.name!r}: {label} {path!r} is {found!r}, which cannot be called"

    @property
    def descriptor(self):
        """What the plugin's hook returned."""
        return getattr(self.plugin_set, self.kind)(self.name)

    def named_code(self) -> list[tuple[str, str]]:
        """`(field, "module:attr")` of the code that the descriptor names."""
        return []

    def _probes(self) -> list[dict]:
        return self.once("probes", lambda: run_probes(self.record.module, self.kind, self.name))


def check_headers(package: Package, folder: str) -> None:
    """Refuse headers that would be found in place of the system's, for kernels are compiled with the folder."""
    found = sorted(file for file in package.files if file.rpartition("/")[0] == folder and file.endswith(".h"))
    shadowing = [file for file in found if Path(file).stem in STANDARD_HEADERS]
    assert not shadowing, (
        f"{package.origin} holds {shadowing[0]!r}, which kernels would include in place of "
        f"<{Path(shadowing[0]).name}>: rename it"
    )


def check_requirement(package: Package) -> None:
    """Require `Requires-Dist: attnloom`, with a range that holds this version and ends."""
    from attnloom import __version__

    found = [r for r in map(Requirement, package.requires) if canonicalize_name(r.name) == "attnloom"]
    plain = [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert plain, f'{package.origin} does not require attnloom: dependencies = ["attnloom>=0.1,<1"]'
    for requirement in plain:
        assert requirement.specifier.contains(__version__, prereleases=True), (
            f"{package.origin} requires {requirement}, and this is attnloom {__version__}"
        )
        ends = any(one.operator in ("<", "<=", "==", "~=", "===") for one in requirement.specifier)
        assert ends, f"{package.origin} requires {requirement} without an upper bound; write 'attnloom>=0.1,<1'"


def check_files(package: Package, modules: list[str], resources: list[str]) -> None:
    """Require the modules and other files in the wheel, and no top-level package that others could have too."""
    for module in modules:
        if not module.startswith("attnloom."):
            assert package.holds_module(module), f"{package.origin} holds no module {module!r}"
    for path in resources:
        assert path in package.files, f"{package.origin} does not hold {path!r}: let the build backend include it"
    top = {file.split("/")[0] for file in package.files if "/" in file}
    common = sorted(top & {"tests", "test", "src", "docs", "examples", "scripts"})
    assert not common, f"{package.origin} would install a top-level package {common}, which other distributions do too"


def overridden(suite: type) -> Iterator[str]:
    """Why checks of a suite do not stand: a sentence for each that a subclass replaces without `xfail(reason=...)`."""
    own = [cls for cls in suite.__mro__ if issubclass(cls, PluginSuite)]
    kit = [cls for cls in own if cls.__module__.startswith("attnloom.testing.")]
    checks = {name for cls in kit for name in vars(cls) if name.startswith("test_")}
    for cls in own:
        if cls in kit:
            continue
        for name in sorted(checks & set(vars(cls))):
            marks = getattr(vars(cls)[name], "pytestmark", [])
            if not any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks):
                yield (
                    f"{cls.__name__}.{name} overrides a check of the kit; mark it "
                    "@pytest.mark.xfail(reason=...) and call super(), or leave it out"
                )


def run_probes(module: str, kind: str, name: str) -> list[dict]:
    """What `attnloom.testing.probe` prints under two hash seeds. Raises `AssertionError` where it fails."""
    command = [sys.executable, "-m", "attnloom.testing.probe", module, kind, name]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed, "ATTNLOOM_CONFIG": ""},
        )
        for seed in ("1", "2")
    ]
    reports = []
    for process in processes:
        out, err = process.communicate()
        last = (err.strip().splitlines() or ["no message"])[-1]
        assert process.returncode == 0, f"importing {module} in a process of its own fails: {last}"
        reports.append(json.loads(out.strip().splitlines()[-1]))
    return reports
