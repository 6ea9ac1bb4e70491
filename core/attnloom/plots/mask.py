"""The picture of a mask or of what is added to logits: queries down, keys across, tiles outlined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from attnloom.plots import COLOURS, new_figure

HIDDEN, TESTED, SEEN, WHOLE = range(4)
"""A pair in a tile that is skipped; hidden in one that is not; seen; seen in a tile that needs no mask."""


def plot_mask(
    spec: Any, qo_len: int, kv_len: int, *, head: int = 0, tile=(8, 8), logit: float = 0.0, title: str = ""
) -> Any:
    """The pairs that the variants of `spec` keep, and what they make of a logit, as a `matplotlib.figure.Figure`.

    Where no pair is hidden and every pair is treated alike, the transform is drawn as a curve of the logit instead.

    Args:
        spec: an `AttentionSpec`.
        qo_len, kv_len: queries and keys of one request; the last query is aligned with the last key.
        head: the query head.
        tile: `(queries, keys)` of the tiles that are outlined.
        logit: what `logits_transform` is given.

    Raises:
        UnsupportedError: matplotlib is missing. Others as `AttentionSpec` and composing it.
    """
    figure = new_figure(3.4, 3.5)
    axes = figure.subplots()
    axes.set_title(title, fontsize=9)
    sight = look(spec, qo_len, kv_len, head=head, logit=logit)
    if sight.logits is not None and sight.visible.all() and np.ptp(sight.logits) == 0:
        _curve(axes, spec, qo_len, kv_len, head)
        return figure
    if sight.logits is None:
        _draw_classes(axes, classes(sight.visible, tile))
    else:
        _draw_logits(figure, axes, sight, logit)
    _draw_tiles(axes, qo_len, kv_len, tile)
    axes.set_xlabel("key", fontsize=8)
    axes.set_ylabel("query", fontsize=8)
    axes.tick_params(labelsize=7)
    return figure


def look(spec: Any, qo_len: int, kv_len: int, *, head: int = 0, logit: Any = 0.0) -> SimpleNamespace:
    """What the float64 references say of every pair: `visible` bool [qo, kv], `logits` [qo, kv] or none."""
    from attnloom.compose import compose
    from attnloom.reference import _Chain

    composition = compose(spec.variants, spec=spec, plugins=spec.plugin_set)
    chain = _Chain(composition, composition.resolve(spec.params))
    site = _site(spec, qo_len, kv_len, head)
    row = SimpleNamespace(**{**vars(site), "q_pos": site.q_pos[:, 0], "q_index": site.q_index[:, 0]})
    row.kv_pos = row.kv_index = np.array(-1)
    with np.errstate(all="ignore"):
        visible = chain.keeps(np.ones((qo_len, kv_len), bool), row, site)
        logits = None
        if "logits_transform" in composition.functors:
            given = np.broadcast_to(np.asarray(logit, np.float64), (qo_len, kv_len))
            logits = np.broadcast_to(chain.logits(given, site), (qo_len, kv_len))
    return SimpleNamespace(visible=visible, logits=logits)


def classes(visible: np.ndarray, tile) -> np.ndarray:
    """Each pair as `HIDDEN`, `TESTED`, `SEEN` or `WHOLE`."""
    found = np.empty(visible.shape, np.int8)
    for top in range(0, visible.shape[0], tile[0]):
        for left in range(0, visible.shape[1], tile[1]):
            part = slice(top, top + tile[0]), slice(left, left + tile[1])
            kept = visible[part]
            found[part] = WHOLE if kept.all() else np.where(kept, SEEN, TESTED) if kept.any() else HIDDEN
    return found


def _site(spec: Any, qo_len: int, kv_len: int, head: int) -> SimpleNamespace:
    q, kv = np.arange(qo_len)[:, None], np.arange(kv_len)[None]
    fields = {
        "request": 0, "qo_head": head, "kv_head": head // spec.group, "q_index": q, "kv_index": kv,
        "q_pos": kv_len - qo_len + q, "kv_pos": kv, "qo_len": qo_len, "kv_len": kv_len,
    }  # fmt: skip
    return SimpleNamespace(**{name: np.asarray(value, np.int64) for name, value in fields.items()})


def _draw_classes(axes: Any, found: np.ndarray) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ("#ffffff", "#dddddd", "#88bbdd", COLOURS[0])
    labels = ("skipped", "tested, hidden", "tested, kept", "kept whole")
    axes.imshow(found, cmap=ListedColormap(colours), vmin=0, vmax=3, aspect="auto", interpolation="nearest")
    shown = [Patch(facecolor=colours[i], edgecolor="#999999", label=labels[i]) for i in np.unique(found)]
    axes.legend(handles=shown, fontsize=6, loc="upper right", framealpha=0.9)


def _draw_logits(figure: Any, axes: Any, sight: SimpleNamespace, logit: float) -> None:
    shown = np.ma.masked_where(~sight.visible, sight.logits)
    image = axes.imshow(shown, cmap="viridis", aspect="auto", interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label(f"what a logit of {logit:g} becomes", fontsize=7)
    bar.ax.tick_params(labelsize=6)


def _draw_tiles(axes: Any, qo_len: int, kv_len: int, tile) -> None:
    axes.set_xticks(np.arange(0, kv_len, tile[1]) - 0.5, np.arange(0, kv_len, tile[1]))
    axes.set_yticks(np.arange(0, qo_len, tile[0]) - 0.5, np.arange(0, qo_len, tile[0]))
    axes.grid(color="#aaaaaa", linewidth=0.4)


def _curve(axes: Any, spec: Any, qo_len: int, kv_len: int, head: int) -> None:
    given = np.linspace(-60, 60, qo_len * kv_len).reshape(qo_len, kv_len)
    axes.plot(
        given.reshape(-1), look(spec, qo_len, kv_len, head=head, logit=given).logits.reshape(-1), color=COLOURS[0]
    )
    axes.set_xlabel("logit", fontsize=8)
    axes.set_ylabel("becomes", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(color="#dddddd", linewidth=0.5)
