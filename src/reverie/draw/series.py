"""Pictures of series: lines over time, one panel each, continuations as fans, and covariances over lags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from reverie.draw.curves import tidy
from reverie.draw.picture import ACCENT, CYCLE, FILM_FRAMES, INK, SOFT, WARM, Film, figure, pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS, ACROSS = 12, 2  # series that are shown one by one


def _panels(x: np.ndarray) -> tuple[Figure, list[Axes], tuple[float, float]]:
    count = min(len(x), PANELS)
    rows = -(-count // ACROSS)
    made = figure(9, 0.5 + 1.1 * rows)
    axes = list(made.subplots(rows, min(count, ACROSS), squeeze=False, sharex=True, sharey=True).flat)
    finite = x[np.isfinite(x)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)
    margin = 0.05 * (high - low) or 1.0
    for panel in axes:
        panel.set_ylim(low - margin, high + margin)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=7)
    for panel in axes[count:]:
        panel.axis("off")
    return made, axes[:count], (low, high)


def lines(x: np.ndarray, title: str = "") -> Figure:
    """Draw the first series, a panel each, with a colour for each number of a moment.  x: (N, T, C)."""
    made, panels, _ = _panels(x[:PANELS])
    for panel, series in zip(panels, x, strict=False):
        for k, column in enumerate(series.T):
            panel.plot(column, color=CYCLE[k % len(CYCLE)], lw=1)
    if title:
        made.suptitle(title, fontsize=10, color=INK)
    return made


def series_frames(film: Film, most: int = FILM_FRAMES) -> Iterator[np.ndarray]:
    """Yield (H, W, 3) frames of series that are being written.  What is not written yet is not drawn."""
    last = film[-1][2]
    made, panels, _ = _panels(last[:PANELS])
    moments = last.shape[1]
    drawn = [[panel.plot([], [], color=CYCLE[k % len(CYCLE)], lw=1)[0] for k in range(last.shape[2])] for panel in panels]
    for panel in panels:
        panel.set_xlim(0, moments - 1)
    for k in np.unique(np.linspace(0, len(film) - 1, most).round().astype(int)):
        there = max(1, round((1 - film[k][0]) * moments))
        for curves, series in zip(drawn, film[k][1], strict=False):
            for curve, column in zip(curves, series.T, strict=True):
                curve.set_data(np.arange(there), column[:there])
        yield pixels(made)


def fan(past: np.ndarray, truth: np.ndarray, bands: Mapping[str, tuple[np.ndarray, np.ndarray]], middle: np.ndarray) -> Figure:
    """Draw a series, what came after it, and where it was expected.

    past: (T,); truth, middle: (K,); bands: lower and upper ends by name, widest first, (K,) each.
    """
    made = figure(9, 3.4)
    axes = made.subplots()
    ahead = np.arange(len(past), len(past) + len(truth))
    for k, (name, (low, high)) in enumerate(bands.items()):
        axes.fill_between(ahead, low, high, color=ACCENT, alpha=0.18 + 0.14 * k, lw=0, label=name)
    axes.plot(np.arange(len(past)), past, color=INK, lw=1.2, label="given")
    axes.plot(ahead, middle, color=ACCENT, lw=1.4, label="expected")
    axes.plot(ahead, truth, color=WARM, lw=1.2, label="what came")
    tidy(axes, "A held-out series and its continuations", "moment", "value")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    return made


def autocovariances(curves: Mapping[str, np.ndarray], error: np.ndarray) -> Figure:
    """Draw covariances over lags by name, the first with a band of two standard errors.  Each: (K + 1,), from lag 0 on."""
    made = figure(9, 3.4)
    axes = made.subplots()
    axes.axhline(0, color=SOFT, lw=0.8)
    styles: Sequence[str] = ("o", "-", "--")
    for k, (name, values) in enumerate(curves.items()):
        lags = np.arange(len(values))
        if k == 0:
            axes.fill_between(lags, values - 2 * error, values + 2 * error, color=SOFT, alpha=0.25, lw=0)
        axes.plot(lags, values, styles[k % len(styles)], color=CYCLE[k % len(CYCLE)], ms=3.5, lw=1.4, label=name)
    tidy(axes, "Covariance of a number with itself, later", "lag k", "gamma(k)")
    axes.legend(fontsize=8, frameon=False)
    return made
