"""A header includes its own package's headers, attnloom's and the system's; anything else is refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
from attnloom.compose import compose
from attnloom.errors import CompositionError
from attnloom.includes import parse

SPEC = SimpleNamespace(
    num_qo_heads=4, num_kv_heads=2, head_dim=64, head_dim_v=64, dtype="float32", kv_dtype="float32", params={}
)
BODY = """
from attnloom.hookspecs import hookimpl
from attnloom.variant import Variant

@hookimpl
def attnloom_variants():
    yield Variant(name="{name}", struct="{name}_t", header="{header}", functors={{"logits_mask"}}, reference="m:a")
"""


@pytest.fixture
def composed(site):
    """Compose the plugin `a` (with `b` where it is there), whose header has the given text."""

    def make(text: str, header: str = "a.h", extra: dict | None = None, names=("a",)):
        site.add("a", BODY.format(name="a", header=header))
        folder = site.path / "fake_fake_a"
        for path, content in {header: text, **(extra or {})}.items():
            (folder / path).parent.mkdir(exist_ok=True, parents=True)
            (folder / path).write_text(textwrap.dedent(content))
        return compose(list(names), spec=SPEC, plugins=site.plugins())

    return make


def test_ones_own_the_cores_and_the_systems_are_fine(composed):
    text = '#include <cmath>\n#include <attnloom/variant.h>\n#include "attnloom/math.h"\n#include "deep/b.h"\n'
    extra = {"deep/b.h": '#include "c.h"\n#include "d.h"\n#include "b.h"\n', "deep/c.h": "", "d.h": ""}
    assert '#include "a.h"' in composed(text, extra=extra).source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('#include "../other.h"', r"a\.h:1 includes \.\./other\.h: a header may not leave its package"),
        ('\n#include "deep/../../x.h"', r"a\.h:2 .* may not leave its package"),
        ("#include </etc/passwd>", "an absolute path is of this machine alone"),
        ('#include "/usr/include/math.h"', "an absolute path"),
        ('#include "C:/x.h"', "an absolute path"),
        ('#include "gone.h"', r"no such file in .*fake_fake_a; system headers are written in <>"),
        ('#include "math.h"', "system headers are written in <>"),
        ("#define X <cmath>\n#include X", r"a\.h:2 .*write the name of a file"),
        ('#include "table.def"', r"only .*\.cuh.* are part of the cache key"),
        ("# /* hm */ include <../x.h>", "may not leave"),
        ("#in\\\nclude <../x.h>", r"a\.h:1 .*may not leave"),
        ("%:include <../x.h>", "may not leave"),
        ('#include_next "/x.h"', "an absolute path"),
        ('const char* s = "/*";\n#include "../x.h"\n// */', r"a\.h:2 .*may not leave"),
    ],
)
def test_anything_else_is_refused(composed, text, message):
    with pytest.raises(CompositionError, match=f"^fake-a: .*{message}"):
        composed(text, extra={"table.def": ""})


def test_so_is_what_a_header_of_its_own_includes(composed):
    with pytest.raises(CompositionError, match=r"deep/b\.h:3 includes \.\./a\.h"):
        composed('#include "deep/b.h"', extra={"deep/b.h": '// one\n// two\n#include "../a.h"\n'})


@pytest.mark.parametrize("form", ["<other.h>", '"other.h"'])
def test_another_plugins_header_is_not_for_including(composed, site, form):
    site.add("b", BODY.format(name="b", header="b.h"))
    for name in ("b.h", "other.h"):
        (site.path / "fake_fake_b" / name).write_text("#pragma once\n")
    with pytest.raises(CompositionError, match=r"fake-a: .*a\.h:1 includes other\.h: "):
        composed(f"#include {form}", names=("a", "b"))


def test_what_is_no_include_is_let_be(composed):
    composed(
        """
        // #include "../x.h"
        /* three lines
        #include "../x.h"
        */
        const char* a = "#include <../x.h>";
        const char* b = R"(
        #include "../x.h"
        )";
        """
    )


def test_lines_are_counted_through_splices_and_comments():
    text = "/* 1\n 2 */\n#define A \\\n  4 \\\n  5\n#include <six>\n"
    assert list(parse(text)) == [(6, "six", False)]


# opencode #7163: a folder of the plugin's name in the directory that one stands in is not the plugin
@pytest.mark.parametrize("how", ["-c", "-m"])
def test_no_module_is_taken_from_the_current_directory(site, tmp_path, how):
    site.add("a")
    planted = tmp_path / "checkout" / "fake_fake_a"
    planted.mkdir(parents=True)
    (planted / "__init__.py").write_text("open('ran', 'w')")
    (planted / "plugin.py").write_text("")
    code = (
        "from attnloom.plugins import Config, PluginSet\n"
        f"plugins = PluginSet(Config(), paths=[{str(site.path)!r}])\n"
        "try:\n    print(plugins.variant('a').package)\nexcept Exception as error:\n    print(error)\n"
    )
    (planted.parent / "probe.py").write_text(code)
    arguments = ["-c", code] if how == "-c" else ["-m", "probe"]
    environment = {"PYTHONPATH": str(site.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=planted.parent, env=environment, capture_output=True, text=True, check=True
    )
    assert "would be imported from the current directory" in done.stdout and str(site.path) in done.stdout
    assert not (planted.parent / "ran").exists()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "fake_fake_a\n"
