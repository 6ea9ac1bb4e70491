"""A compile error names the plugin, the author's file and line, and the first message."""

import pytest
from attnloom import jit
from attnloom.errors import CompileError
from attnloom.jit.diagnostics import diagnose

CORE = """#pragma once
template <class V> struct Checked {
  static_assert(V::width > 0, "struct Plug: functor logits_transform must take (const P&, float, const Site&)");
  float apply(float x) const { return V{}.transform(x).value; }
};
"""
UNIT = "#include <core.h>\n#include <plug.h>\nfloat use(float x) { return Checked<Plug>{}.apply(x); }\n"


@pytest.fixture
def broken(tmp_path, unit, real_compiler):
    """Build a plugin header that is included beside a core header; returns the error and the header's path."""

    def build(plugin: str):
        core, folder = tmp_path / "core", tmp_path / "plug in"
        core.mkdir()
        folder.mkdir()
        (core / "core.h").write_text(CORE)
        (folder / "plug.h").write_text(plugin)
        owners = {str(folder): "soft_cap (attnloom-soft-cap 0.1.0)", str(core): "attnloom"}
        with pytest.raises(CompileError) as caught:
            jit.build(unit("kernel", UNIT, include_dirs=[core, folder], owners=owners))
        return caught.value, folder / "plug.h"

    return build


def test_a_slip_in_the_plugin(broken):
    error, header = broken(
        "#pragma once\nstruct Plug {\n  static constexpr int width = 1;\n  struct R { float value; };\n"
        "  R transform(float x) const { return {tanhh(x)}; }\n};\n"
    )
    text = str(error)
    assert text.startswith("plugin soft_cap (attnloom-soft-cap 0.1.0) does not compile with ")
    assert f"{header}:5:" in text and "tanhh" in text
    assert "^" in text.splitlines()[3] and "return {tanhh(x)}" in text.splitlines()[2]
    assert len(text.splitlines()) <= 6
    assert (error.diagnostic.owner, error.diagnostic.line) == ("soft_cap (attnloom-soft-cap 0.1.0)", 5)
    assert "tanhh" in error.log.read_text() and str(error.log) in text
    assert (error.log.parent / "kernel.cc").read_text() == UNIT


def test_a_static_assert_of_the_core_shows_its_text(broken):
    error, _ = broken(
        "#pragma once\nstruct Plug {\n  static constexpr int width = 0;\n  struct R { float value; };\n"
        "  R transform(float x) const { return {x}; }\n};\n"
    )
    message = "struct Plug: functor logits_transform must take (const P&, float, const Site&)"
    assert error.diagnostic.message == message and message in str(error)
    assert "required from" not in str(error)


def test_an_error_in_the_core_leads_to_the_plugin_that_caused_it(broken):
    error, header = broken(
        "#pragma once\n#include <core.h>\nstruct Bad { static constexpr int width = 1;"
        " int transform(float) const { return 1; } };\n"
        "struct Plug {\n  static constexpr int width = 1;\n  struct R { float value; };\n"
        "  R transform(float x) const {\n    return {Checked<Bad>{}.apply(x)};\n  }\n};\n"
    )
    text = str(error)
    assert text.startswith("plugin soft_cap")
    assert f"{header}:8" in text and "raised in" in text and "core.h:4" in text
    assert "return {Checked<Bad>{}.apply(x)};" in text


def test_an_error_of_nobody(broken):
    error, _ = broken("#pragma once\nstruct Other {};\n")
    assert str(error).startswith("kernel kernel does not compile")
    assert "Plug" in str(error) and error.diagnostic.owner is None


def test_a_missing_symbol_fails_at_link_not_at_load(unit, real_compiler):
    with pytest.raises(CompileError, match=r"the link failed\n.*undefined (reference|symbol).*nowhere"):
        jit.build(unit(source="int nowhere(); int here() { return nowhere(); }\n"))


def test_a_failed_unit_is_tried_again(broken, unit):
    with pytest.raises(CompileError):
        jit.build(unit("again", "int x = ;"))
    with pytest.raises(CompileError):
        jit.build(unit("again", "int x = ;"))


GCC_STATIC_ASSERT = """\
FAILED: kernel.cc.o
In file included from kernel.cc:2:
/core/compose.h: In instantiation of 'struct attnloom::Check<Rope>':
/plugins/rope/rope.h:9:12:   required from 'void Rope::f() [with T = int]'
kernel.cc:7:3:   required from here
/core/compose.h:31:17: error: static assertion failed: Rope::kv_range must return Range or Ranges
   31 |   static_assert(returns_range<V>, "Rope::kv_range must return Range or Ranges");
      |                 ^~~~~~~~~~~~~~~~
/core/compose.h:31:17: note: 'returns_range<Rope>' evaluates to false
ninja: build stopped: subcommand failed.
"""
CLANG_STATIC_ASSERT = """\
/core/compose.h:31:3: error: static assertion failed due to requirement 'returns_range<Rope>': Rope::kv_range is wrong
  static_assert(returns_range<V>, "Rope::kv_range is wrong");
  ^             ~~~~~~~~~~~~~~~~
/plugins/rope/rope.h:9:12: note: in instantiation of template class 'attnloom::Check<Rope>' requested here
  attnloom::Check<Rope> check;
           ^
1 error generated.
"""
CLANG_14_STATIC_ASSERT = """\
/core/compose.h:31:3: error: static_assert failed due to requirement 'returns_range<Rope>' "Rope::kv_range is wrong"
"""
OWNERS = (("/plugins/rope", "rope"), ("/core", "attnloom"))


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (GCC_STATIC_ASSERT, "Rope::kv_range must return Range or Ranges"),
        (CLANG_STATIC_ASSERT, "Rope::kv_range is wrong"),
    ],
)
def test_both_compilers_trails_are_followed(log, message):
    found = diagnose(log, OWNERS)
    assert (found.owner, found.file, found.line, found.message) == ("rope", "/plugins/rope/rope.h", 9, message)
    assert found.raised_in == "/core/compose.h:31"


def test_an_older_clang():
    found = diagnose(CLANG_14_STATIC_ASSERT, OWNERS)
    assert found.message == "Rope::kv_range is wrong" and found.owner is None and found.line == 31


def test_a_syntax_error_comes_before_the_assert_it_causes():
    log = "/plugins/rope/rope.h:3:1: error: expected ';'\n" + GCC_STATIC_ASSERT
    assert diagnose(log, OWNERS).message == "error: expected ';'"


def test_an_assert_comes_before_the_noise_around_it():
    log = "/core/host/kernel.h:3:1: error: no match for call\n" + GCC_STATIC_ASSERT
    assert diagnose(log, OWNERS).message == "Rope::kv_range must return Range or Ranges"


def test_a_slip_in_the_generated_text_comes_before_the_asserts_it_causes():
    log = "kernel.cpp:3:1: error: use of undeclared identifier 'Rope'\nRope x;\n^\n" + CLANG_STATIC_ASSERT
    found = diagnose(log, OWNERS)
    assert found.message == "error: use of undeclared identifier 'Rope'" and found.excerpt == "Rope x;\n^"


def test_prefixes_are_folders_not_spellings():
    found = diagnose("/plugins/rope_more/x.h:3:1: error: no\n", OWNERS)
    assert found.owner is None


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("/usr/bin/ld: cannot find -lomp: No such file or directory\ncollect2: error: ld returned 1", "libomp-dev"),
        ("g++: fatal error: cannot read spec file 'libgomp.spec': No such file or directory", "libgomp"),
        ("kernel.cc:1:10: fatal error: omp.h: No such file or directory\n    1 | #include <omp.h>", "libomp-dev"),
        ("cc1plus: out of memory allocating 65536 bytes", "memory"),
        ("kernel.cc:1:10: internal compiler error: Segmentation fault", "crashed"),
        ("/tmp/x.s: fatal error: error writing to /tmp/x.o: Disk quota exceeded", "disk is full"),
    ],
)
def test_the_machines_own_trouble_is_told_with_advice(log, advice):
    found = diagnose(log, OWNERS)
    assert advice in str(found) and found.owner is None


def test_an_error_that_quotes_trouble_is_an_ordinary_error():
    log = "/plugins/rope/rope.h:3:1: error: 'x' was not declared\n    3 |  log(\"out of memory\");\n      |  ^\n"
    assert diagnose(log, OWNERS).owner == "rope"


CHECKED = """\
kernel.cpp:30:1: error: static assertion failed: soft-cap (attnloom-soft-cap 0.1), variant cap: {message}
"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("SoftCap::logits_transform must be `float logits_transform(const Params&, float, const Site&) const`", 4),
        ("kv_range must be both defined by SoftCap and declared by its descriptor, or neither", 3),
        ("SoftCap must be an empty struct", 3),
        ("something else", 30),
    ],
)
def test_a_check_of_the_engine_is_put_down_to_the_plugin_it_names(tmp_path, message, line):
    header = tmp_path / "soft_cap.h"
    header.write_text(
        "// struct SoftCap, logits_transform(\nstruct SoftCapper;\nstruct SoftCap {\n  void logits_transform();\n};\n"
    )
    owners = ((str(tmp_path), "soft-cap (attnloom-soft-cap 0.1)"), ("/core", "attnloom"), ("/other", "soft-cap"))
    found = diagnose(CHECKED.format(message=message), owners)
    assert found.owner == "soft-cap (attnloom-soft-cap 0.1)" and found.line == line
    assert message in found.message
    assert found.file == (str(header) if line < 30 else "kernel.cpp")


def test_the_real_contract_names_plugin_file_and_line(tmp_path, monkeypatch, real_compiler):
    """Through `compose`: a functor of the wrong signature, in a package that is only on the path."""
    from attnloom.kernel import describe
    from attnloom.spec import AttentionSpec
    from attnloom.variant import Param, Variant

    package = tmp_path / "slippery"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "slip.h").write_text(
        "#pragma once\n#include <attnloom/variant.h>\nstruct Slip {\n  template <class P>\n"
        "  ATTNLOOM_FN float logits_transform(const P& p, const attnloom::Site&) const { return p.cap; }\n};\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    slip = Variant(
        name="slip",
        struct="Slip",
        header="slip.h",
        package="slippery",
        functors={"logits_transform"},
        params=[Param("cap", float, default=1.0)],
        reference="slippery.reference:Slip",
    )
    spec = AttentionSpec(variants=["causal", slip], num_qo_heads=2, num_kv_heads=1, head_dim=16, dtype="float32")
    with pytest.raises(CompileError) as caught:
        jit.build(describe(spec)[2])
    text = str(caught.value)
    assert "'slip' does not compile" in text and f"{package / 'slip.h'}:5: " in text
    assert "Slip::logits_transform must be `float logits_transform(const Params&, float, const Site&) const`" in text
