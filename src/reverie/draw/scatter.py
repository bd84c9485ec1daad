"""Scatter plots of points: axes with column names and separate scales, pair plots, and films."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from reverie.draw import lettering
from reverie.draw.picture import (
    CLOUDS,
    CYCLE,
    DPI,
    FILM_FRAMES,
    INK,
    Film,
    axis_limits,
    colours,
    dots,
    figure,
    legend,
    pixels,
    set_suptitle,
    set_title,
    square_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Limits = tuple[tuple[float, float], tuple[float, float]]

PAIRED = 6  # maximum number of columns of a pair plot
PANEL_WIDTH, MIN_SIZE = 1.7, 5.0  # inches: width of a panel of a pair plot, and minimum size of a figure
MAX_RANGE_RATIO = 2.0  # maximum ratio of the ranges for one common scale
NAMED_CLOUDS = {"left": 0.07, "right": 0.99, "bottom": 0.17, "top": 0.91, "wspace": 0.28}  # margins with space for names
BINS = 40  # bins of a histogram
TICK_SIZE = 7  # font size of tick labels


def limits_of(points: np.ndarray, named: bool = False) -> Limits:
    """Return limits for the first two coordinates: common ones if unnamed columns have similar ranges.

    points: (N, D).
    """
    limits = [axis_limits(column) for column in points.T[:2]]
    if len(limits) == 1:
        return limits[0], (-1.0, 1.0)
    common = axis_limits(points[:, :2])
    min_range = min(high - low for low, high in limits)
    return (common, common) if not named and common[1] - common[0] <= MAX_RANGE_RATIO * min_range else (limits[0], limits[1])


def point_axes(axes: Axes, limits: Limits, title: str = "", names: Sequence[str] = ()) -> Axes:
    """Prepare square axes for points, with ticks and names if names are given."""
    square_axes(axes, limits[0], title)
    if limits[0] != limits[1] or names:
        axes.set_aspect("equal" if limits[0] == limits[1] else "auto")
        axes.set(xlim=limits[0], ylim=limits[1])
        axes.set_box_aspect(1)
    if names:
        _name(axes, names[0], names[1] if len(names) > 1 else "")
    return axes


def _name(axes: Axes, x: str, y: str, width: float = MIN_SIZE) -> None:
    """Add ticks and names to axes, in fonts with the needed glyphs."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.ticker import MaxNLocator

    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        words = lettering.shorten(name, round(width * DPI * 0.9), 12)
        text, font = lettering.drawable(words)
        axis.set_label_text(text.replace("$", r"\$"), fontproperties=FontProperties(fname=font, size=9), color=INK)
        axis.set_major_locator(MaxNLocator(5 if width == MIN_SIZE else 3, steps=[1, 2, 2.5, 5, 10]))
        axis.set_tick_params(labelsize=TICK_SIZE, length=3, color="#d5dbe1", labelcolor=INK)


def scatter(
    points: np.ndarray, labels: Sequence[str] | None = None, title: str = "", columns: Sequence[str] = ()
) -> Figure:  # fmt: skip
    """Plot points: a histogram of one column, a scatter plot of two, or a pair plot of up to six.

    points: (N, D); columns: names of the coordinates, x1, x2, ... by default.
    """
    names = list(columns) or [f"x{k + 1}" for k in range(points.shape[1])]
    if points.shape[1] > 2:
        return _pairs(points, labels, title, names)
    fig = figure(MIN_SIZE, MIN_SIZE)
    axes = fig.subplots()
    if points.shape[1] == 1:
        _histogram(axes, points[:, 0], labels)
        _name(axes, names[0], "count")
        set_title(axes, title)
    else:
        point_axes(axes, limits_of(points, bool(columns)), title, names)
        dots(axes, points, colours(labels, len(points)))
    legend(axes, labels)
    return fig


def _histogram(axes: Axes, values: np.ndarray, labels: Sequence[str] | None) -> None:
    low, high = axis_limits(values)
    bins = np.linspace(low, high, min(BINS, max(8, round(len(values) ** 0.5))) + 1)
    groups = np.asarray(labels if labels is not None else [""] * len(values))
    parts = [values[groups == name] for name in sorted(set(groups.tolist()))]
    axes.hist(parts, bins=list(bins), stacked=True, color=[CYCLE[k % len(CYCLE)] for k in range(len(parts))], alpha=0.8)
    axes.set_xlim(low, high)
    axes.spines[["top", "right"]].set_visible(False)


def _pairs(points: np.ndarray, labels: Sequence[str] | None, title: str, names: Sequence[str]) -> Figure:
    """Plot each column against each other below a diagonal of histograms."""
    size = min(points.shape[1], PAIRED)
    fig = figure(max(MIN_SIZE, PANEL_WIDTH * size), max(MIN_SIZE, PANEL_WIDTH * size))
    grid = fig.subplots(size, size, sharex="col")
    limits = [axis_limits(column) for column in points.T[:size]]
    shades = colours(labels, len(points))
    for row in range(size):
        for column in range(size):
            axes = grid[row, column]
            if column > row:
                axes.axis("off")
                continue
            if row == column:
                _histogram(axes, points[:, row], labels)
            else:
                dots(axes, points[:, [column, row]], shades)
                axes.set(ylim=limits[row])
            axes.set_xlim(limits[column])
            _name(axes, names[column] if row == size - 1 else "", names[row] if column == 0 else "", PANEL_WIDTH)
            axes.tick_params(labelbottom=row == size - 1, labelleft=column == 0 and row > 0)
    if points.shape[1] > PAIRED:
        title = f"{title}: the first {PAIRED} of {points.shape[1]} columns".removeprefix(": ")
    if title:
        set_suptitle(fig, title)
    legend(grid[0, -1], labels)
    fig.align_ylabels()
    return fig


def point_frames(
    film: Film, labels: Sequence[str] | None, columns: Sequence[str] = (), max_frames: int = FILM_FRAMES
) -> Iterator[np.ndarray]:
    """Yield (H, W, 3) frames with x_t on the left and the predicted x0 on the right, in the first two coordinates."""
    last = film[-1][2]
    limits = limits_of(np.concatenate([film[0][1][:, :2], last[:, :2]]), bool(columns))
    fig = figure(8, 4.3, NAMED_CLOUDS if columns else CLOUDS)
    panels = [point_axes(axes, limits, "", columns[:2]) for axes in fig.subplots(1, 2)]
    clouds = [dots(axes, film[0][1], colours(labels, len(last))) for axes in panels]
    panels[1].set_title("estimate of x0", fontsize=10, color=INK)
    legend(panels[1], labels)
    for k in np.unique(np.linspace(0, len(film) - 1, max_frames).round().astype(int)):
        t, *pair = film[k]
        panels[0].set_title(f"x at t = {t:.3f}", fontsize=10, color=INK)
        for cloud, points in zip(clouds, pair, strict=True):
            cloud.set_offsets(np.pad(points, ((0, 0), (0, 1)))[:, :2])
        yield pixels(fig)
    panels[0].set_title("the sample", fontsize=10, color=INK)
    clouds[0].set_offsets(np.pad(last, ((0, 0), (0, 1)))[:, :2])
    yield pixels(fig)
