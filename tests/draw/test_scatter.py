"""Scatter plots: ticks, column names and a scale per axis; pair plots of up to six columns."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes

from reverie.draw.picture import pixels
from reverie.draw.scatter import PAIRED, point_frames, scatter
from reverie.draw.series_plot import lines

RANDOM = np.random.default_rng(0)
SCALES = np.array([9.0, 1e4, 0.01, 3.0, 1.0, 1.0, 1.0])


def table(width: int) -> np.ndarray:
    """Return points whose columns have very different scales."""
    x: np.ndarray = RANDOM.normal(size=(300, width)) * SCALES[:width] + 20 * SCALES[:width]
    return x


def holds(limits: tuple[float, float], values: np.ndarray) -> bool:
    """Return whether limits contain nearly all values and are not much wider."""
    inside = np.mean((values >= limits[0]) & (values <= limits[1]))
    return bool(inside > 0.98 and limits[1] - limits[0] < 2 * np.ptp(values))


@pytest.mark.parametrize("columns", [(), ("height (cm)", "$income$ \u0631\u06cc\u0627\u0644")])
def test_each_axis_has_a_scale_ticks_and_a_name(columns: tuple[str, ...]) -> None:
    x = table(2)
    fig = scatter(x, ["a", "b"] * 150, "people", columns)
    pixels(fig)
    axes: Axes = fig.axes[0]
    assert holds(axes.get_xlim(), x[:, 0]) and holds(axes.get_ylim(), x[:, 1])
    assert len(axes.get_xticks()) >= 3 and len(axes.get_yticks()) >= 3 and axes.get_xticklabels()[1].get_text()
    assert axes.get_xlabel() == (columns or ("x1",))[0] and axes.get_ylabel()
    box = axes.get_tightbbox()
    assert box is not None and box.x0 >= 0 and box.y0 >= 0


def test_similar_scales_keep_the_aspect_ratio() -> None:
    assert scatter(RANDOM.normal(size=(300, 2))).axes[0].get_aspect() == 1


@pytest.mark.parametrize("width", [3, 6, 7])
def test_pairs_of_columns(width: int) -> None:
    x, names = table(width), [f"column {k}" for k in range(width)]
    fig = scatter(x, None, "t", names)
    pixels(fig)
    shown = min(width, PAIRED)
    visible = [axes for axes in fig.axes if axes.axison]
    assert len(visible) == shown * (shown + 1) // 2
    assert [axes.get_xlabel() for axes in visible if axes.get_xlabel()] == names[:shown]
    last = [axes for axes in visible if axes.get_subplotspec().rowspan.start == shown - 1]  # type: ignore[union-attr]
    assert all(holds(axes.get_xlim(), x[:, k]) for k, axes in enumerate(last))
    assert width <= PAIRED or f"{PAIRED} of {width}" in fig.get_suptitle()


def test_one_column_is_a_histogram() -> None:
    axes = scatter(table(1), None, "", ["age"]).axes[0]
    assert len(axes.patches) >= 8 and axes.get_xlabel() == "age"


def test_films_show_the_scale_of_each_column() -> None:
    x = table(2)
    frames = list(point_frames([(1.0, x, x), (0.0, x, x)], None, ("height", "income")))
    inside = frames[-1][60:-60, 40:380]
    assert np.unique((inside < 200).any(-1).nonzero()[1]).size > 100  # points fill the panel and are not on a line


def test_series_plots_label_their_columns() -> None:
    fig = lines(RANDOM.normal(size=(4, 20, 3)), "w", ["warmth", "rain", "wind $"])
    pixels(fig)
    (shown,) = fig.legends
    assert [text.get_text() for text in shown.get_texts()] == ["warmth", "rain", r"wind \$"]
