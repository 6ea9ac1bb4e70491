"""docs/variants.md says what the code does."""

import inspect
import re
from pathlib import Path

import pytest
from attnloom import Variant
from attnloom.mods import examples, gallery
from attnloom.mods.functor import lower_variant

PAGE = Path(__file__).parents[2] / "docs" / "variants.md"
TEXT = PAGE.read_text() if PAGE.exists() else ""
pytestmark = pytest.mark.skipif(not TEXT, reason="the documentation is not beside the tests")


def test_the_code_runs():
    before_gallery = TEXT.partition("## Gallery")[0]
    exec("\n".join(re.findall(r"```python\n(.*?)```", before_gallery, re.DOTALL)), {})


@pytest.mark.parametrize("name", [*examples.MASKS, *examples.SCORES])
def test_the_gallery_is_the_codes(name):
    section = next(part for part in TEXT.split("\n### ") if f"](pictures/{name}.png)" in part)
    assert inspect.getsource(getattr(gallery, name)).strip() in section
    kind = "mask_mod" if name in examples.MASKS else "score_mod"
    notes = lower_variant(Variant.from_mods(name, **{kind: getattr(examples, name)})).notes
    assert re.findall(r"^- `(.*)`$", section, re.MULTILINE) == list(notes)
    assert (PAGE.parent / "pictures" / f"{name}.png").stat().st_size < 40_000


def test_every_function_has_its_entry():
    shown = set(re.findall(r"\]\(pictures/(\w+)\.png\)", TEXT))
    assert shown == {*examples.MASKS, *examples.SCORES}
    made = {name for name, value in vars(gallery).items() if inspect.isfunction(value)} - {"t5_buckets"}
    assert made == shown


def test_a_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from attnloom import AttentionSpec
    from attnloom.cli.plot_mask import member
    from attnloom.plots import save
    from attnloom.plots.mask import HIDDEN, SEEN, TESTED, WHOLE, classes, look, plot_mask

    names = ["attnloom.mods.examples:chunked", "sliding_window", "attnloom.mods.examples:alibi"]
    for chosen in (names[:2], names, ["attnloom.mods.examples:soft_cap"]):
        params = {"sliding_window.left": 5} if "sliding_window" in chosen else {}
        spec = AttentionSpec([member(n) for n in chosen], 4, 4, 64, dtype="float32", params=params)
        assert save(plot_mask(spec, 40, 48), tmp_path / "mask.png").stat().st_size > 2000
    spec = AttentionSpec(["causal"], 4, 4, 64, dtype="float32")
    visible = look(spec, 16, 16).visible
    assert visible.sum() == 16 * 17 // 2
    found = classes(visible, (8, 8))
    assert [found[0, 8], found[0, 1], found[1, 0], found[8, 0]] == [HIDDEN, TESTED, SEEN, WHOLE]


@pytest.mark.parametrize(
    "words, message",
    [
        (["causal", "--head", "9"], "--head 9: of 4 query heads"),
        (["no_such_module:near"], "cannot be imported: No module named 'no_such_module'.*PYTHONPATH=."),
        (["math:pi"], "'math:pi' is no score_mod or mask_mod"),
    ],
)
def test_what_cannot_be_drawn(capsys, words, message):
    from attnloom.cli import main

    assert main(["plot", "mask", *words]) != 0
    assert re.search(message, capsys.readouterr().err, re.DOTALL)
