"""Pictures say what the index and the plan say, and are files when the command is done."""

from __future__ import annotations

import subprocess
import sys

import attnloom
import numpy as np
import pytest
from attnloom.cli.plot_batch import block_tables, lengths, made_up_index
from attnloom.errors import IndexFormatError, NotPlannedError, UnsupportedError
from attnloom.plots import new_figure, runs, save
from attnloom.plots.index import blocks_of, plot_index
from attnloom.plots.plan import item_times, plot_plan

pytest.importorskip("attnloom_radix_tree", reason="draws the storage formats of this project")
QO, KV = [1, 1, 5, 0], [70, 41, 90, 33]
FORMATS = [("page_table", 0), ("radix_tree", 24), ("tree_attention", 0), ("dense", 0)]


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib", reason="pictures need the extra `plot`")


def test_runs():
    assert runs([0, 1, 2, 5, 7, 8]) == [(0, 3), (5, 6), (7, 9)] and runs([]) == []


@pytest.mark.parametrize("name", [name for name, _ in FORMATS])
def test_the_blocks_are_those_that_the_index_spells_out(name):
    index = made_up_index(name, QO, KV, 8, dict(FORMATS)[name])
    dense = index.to_dense()
    for number, level in enumerate(index.levels):
        drawn = {
            (int(token), page * 8 + slot)
            for tokens, page, begin, end in blocks_of(level, 8, 0)
            for token in tokens
            for slot in range(begin, end)
        }
        tokens, columns = np.nonzero(dense.level == number)
        assert drawn == set(zip(tokens.tolist(), dense.slot[tokens, columns].tolist(), strict=True))


@pytest.mark.parametrize(("name", "shared"), FORMATS)
def test_an_index_is_drawn_level_by_level(matplotlib, name, shared, tmp_path):
    index = made_up_index(name, QO, KV, 8, shared)
    figure = plot_index(index, title="a title")
    (axes,) = figure.axes
    boxes = sum(len(runs(tokens)) for level in index.levels for tokens, *_ in blocks_of(level, index.page_size, 0))
    assert len(axes.patches) == boxes > 0
    assert axes.get_ylim() == (index.num_tokens, 0) and "a title\n4 requests, 7 query tokens" in axes.get_title("left")
    (legend,) = figure.legends
    assert [text.get_text()[:8] for text in legend.get_texts()] == [f"level {i}:" for i in range(len(index.levels))]
    assert save(figure, tmp_path / "deep" / "index.svg").stat().st_size > 1000


def test_a_shared_prefix_is_a_tall_block(matplotlib):
    figure = plot_index(made_up_index("radix_tree", [1] * 6, [40] * 6, 8, 32))
    tall = [patch for patch in figure.axes[0].patches if patch.get_height() == 6]
    assert len(tall) == 4 and "as a single level" in figure.axes[0].get_title("left")


@pytest.mark.parametrize("lens", [([], []), ([0], [0]), ([0, 2], [5, 2])])
def test_an_index_with_little_in_it(matplotlib, lens, tmp_path):
    save(plot_index(made_up_index("page_table", *lens, 4, 1)), tmp_path / "index.png")


@pytest.fixture(scope="module")
def planned():
    spec = attnloom.AttentionSpec(
        ["causal"], num_qo_heads=4, num_kv_heads=2, head_dim=40, dtype="float32", tile=attnloom.Tile(16, 16)
    )
    attn = attnloom.AttentionWrapper(spec, num_workers=6, num_threads=1)
    attn.plan(made_up_index("page_table", [1, 1, 40, 3], [700, 300, 40, 90], 8, 0))
    return attn


def test_a_plan_is_drawn_worker_by_worker(matplotlib, planned, tmp_path):
    figure = plot_plan(planned, title="a title")
    (axes,) = figure.axes
    view = planned._plan.view
    bars = [patch for patch in axes.patches if patch.get_height() == pytest.approx(0.86)]
    assert len(bars) == view.num_items
    assert axes.get_ylim() == (
        5.5,
        -0.5,
    ) and f"{view.num_items} items of {view.num_tiles} tiles on 6" in axes.get_title("left")
    ends = max(bar.get_x() + bar.get_width() for bar in bars)
    assert ends == pytest.approx(view.busiest / 1e6, rel=0.02)
    save(figure, tmp_path / "plan.pdf")


def test_the_times_are_the_planners(planned):
    view = planned._plan.view
    times = item_times(view.decode(), planned._plan._input)
    assert sum(map(sum, times)) == pytest.approx(view.total / 1e6, rel=0.02)


def test_without_a_plan(matplotlib, planned):
    with pytest.raises(NotPlannedError, match="call plan"):
        plot_plan(attnloom.AttentionWrapper(planned.spec, num_threads=1))


def test_without_matplotlib_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match=r"pip install matplotlib, or attnloom with its extra: attnloom\[plot\]"):
        new_figure(1, 1)


def test_a_name_without_a_known_suffix(matplotlib, tmp_path):
    with pytest.raises(UnsupportedError, match=r"'x.docx': a picture's name ends in one of .*\.png"):
        save(new_figure(1, 1), tmp_path / "x.docx")


def test_lengths_and_made_up_batches():
    import typer

    assert lengths("1*3, 17", "--qo-lens") == [1, 1, 1, 17]
    with pytest.raises(typer.BadParameter, match="write numbers such as"):
        lengths("1*x", "--qo-lens")
    assert block_tables([20, 9], 8, 8).tolist() == [[0, 1, 2], [0, 3, 0]]
    with pytest.raises(IndexFormatError, match="--qo-lens has 1 requests, --kv-lens 2"):
        made_up_index("dense", [1], [1, 1], 8, 0)
    with pytest.raises(UnsupportedError, match="'dense' takes no block tables"):
        made_up_index("dense", [1], [1], 8, 8)


def test_the_command_writes_a_file(matplotlib, tmp_path):
    command = [sys.executable, "-m", "attnloom", "plot", "index", "-o", "drawn.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "drawn.png\n", done.stderr
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
    done = subprocess.run([*command[:-1], "x.docx"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith("attnloom: error: 'x.docx'")
