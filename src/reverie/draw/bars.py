"""Bar charts of counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reverie.draw.curves import label_axes
from reverie.draw.picture import ACCENT, INK, figure, matplotlib_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def count_bars(counts: Mapping[str, int], title: str) -> Figure:
    """Draw a bar for each count, in the given order."""
    fig = figure(7, 0.7 + 0.19 * max(1, len(counts)))
    axes = fig.subplots()
    positions = range(len(counts))
    axes.barh(positions, list(counts.values()), color=ACCENT, height=0.7)
    axes.set_yticks(list(positions), [matplotlib_text(name) for name in counts], fontsize=8)
    axes.invert_yaxis()
    for position, count in zip(positions, counts.values(), strict=True):
        axes.text(count, position, f" {count:,}", va="center", fontsize=7, color=INK)
    label_axes(axes, matplotlib_text(title), "count", "")
    axes.margins(x=0.12)
    return fig
