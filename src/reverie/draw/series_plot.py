"""Plots of series: lines over time, forecasts as fan charts, and autocovariances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from reverie.draw import lettering
from reverie.draw.curves import label_axes
from reverie.draw.picture import ACCENT, CYCLE, FILM_FRAMES, INK, LEGEND, SOFT, WARM, Film, figure, matplotlib_text, pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS, COLUMNS = 12, 2  # per figure


def _panels(x: np.ndarray) -> tuple[Figure, list[Axes], tuple[float, float]]:
    count = min(len(x), MAX_PANELS)
    rows = -(-count // COLUMNS)
    fig = figure(9, 0.5 + 1.1 * rows)
    axes = list(fig.subplots(rows, min(count, COLUMNS), squeeze=False, sharex=True, sharey=True).flat)
    finite = x[np.isfinite(x)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)
    margin = 0.05 * (high - low) or 1.0
    for panel in axes:
        panel.set_ylim(low - margin, high + margin)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=7)
    for panel in axes[count:]:
        panel.axis("off")
    return fig, axes[:count], (low, high)


def lines(x: np.ndarray, title: str = "", columns: Sequence[str] = ()) -> Figure:
    """Draw the first series, one panel each, one colour per channel.  x: (N, T, C)."""
    fig, panels, _ = _panels(x[:MAX_PANELS])
    for panel, series in zip(panels, x, strict=False):
        for k, column in enumerate(series.T):
            panel.plot(column, color=CYCLE[k % len(CYCLE)], lw=1)
    if title:
        fig.suptitle(title, fontsize=10, color=INK)
    if columns:
        shown = [matplotlib_text(lettering.shorten(name, 150, 11)) for name in columns[:LEGEND]]
        fig.legend(panels[0].get_lines()[:LEGEND], shown, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return fig


def series_frames(film: Film, max_frames: int = FILM_FRAMES) -> Iterator[np.ndarray]:
    """Yield (H, W, 3) frames of series during generation, up to the generated time step."""
    last = film[-1][2]
    fig, panels, _ = _panels(last[:MAX_PANELS])
    length = last.shape[1]
    curves_by_panel = [
        [panel.plot([], [], color=CYCLE[k % len(CYCLE)], lw=1)[0] for k in range(last.shape[2])] for panel in panels
    ]
    for panel in panels:
        panel.set_xlim(0, length - 1)
    for k in np.unique(np.linspace(0, len(film) - 1, max_frames).round().astype(int)):
        length_now = max(1, round((1 - film[k][0]) * length))
        for curves, series in zip(curves_by_panel, film[k][1], strict=False):
            for curve, column in zip(curves, series.T, strict=True):
                curve.set_data(np.arange(length_now), column[:length_now])
        yield pixels(fig)


def fan(past: np.ndarray, truth: np.ndarray, bands: Mapping[str, tuple[np.ndarray, np.ndarray]], middle: np.ndarray) -> Figure:
    """Draw a fan chart: a series, its actual continuation, and the predicted mean with bands.

    past: (T,); truth, middle: (K,); bands: lower and upper ends by name, widest first, (K,) each.
    """
    fig = figure(9, 3.4)
    axes = fig.subplots()
    ahead = np.arange(len(past), len(past) + len(truth))
    for k, (name, (low, high)) in enumerate(bands.items()):
        axes.fill_between(ahead, low, high, color=ACCENT, alpha=0.18 + 0.14 * k, lw=0, label=name)
    axes.plot(np.arange(len(past)), past, color=INK, lw=1.2, label="observed")
    axes.plot(ahead, middle, color=ACCENT, lw=1.4, label="predicted mean")
    axes.plot(ahead, truth, color=WARM, lw=1.2, label="actual")
    label_axes(axes, "A held-out series and its continuations", "time step", "value")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig


def autocovariances(curves: Mapping[str, np.ndarray], error: np.ndarray) -> Figure:
    """Draw autocovariances by name, the first with a band of two standard errors.  Each: (K + 1,), from lag 0."""
    fig = figure(9, 3.4)
    axes = fig.subplots()
    axes.axhline(0, color=SOFT, lw=0.8)
    styles: Sequence[str] = ("o", "-", "--")
    for k, (name, values) in enumerate(curves.items()):
        lags = np.arange(len(values))
        if k == 0:
            axes.fill_between(lags, values - 2 * error, values + 2 * error, color=SOFT, alpha=0.25, lw=0)
        axes.plot(lags, values, styles[k % len(styles)], color=CYCLE[k % len(CYCLE)], ms=3.5, lw=1.4, label=name)
    label_axes(axes, "Autocovariance", "lag k", "gamma(k)")
    axes.legend(fontsize=8, frameon=False)
    return fig
