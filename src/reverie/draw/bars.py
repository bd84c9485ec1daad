"""Pictures of counts: what occurs how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reverie.draw.curves import tidy
from reverie.draw.picture import ACCENT, INK, figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ranks(counts: Mapping[str, int], title: str) -> Figure:
    """Draw how often each thing occurs, a bar each, in the order they are given in."""
    made = figure(7, 0.7 + 0.19 * max(1, len(counts)))
    axes = made.subplots()
    places = range(len(counts))
    axes.barh(places, list(counts.values()), color=ACCENT, height=0.7)
    axes.set_yticks(list(places), [plain(name) for name in counts], fontsize=8)
    axes.invert_yaxis()
    for place, count in zip(places, counts.values(), strict=True):
        axes.text(count, place, f" {count:,}", va="center", fontsize=7, color=INK)
    tidy(axes, plain(title), "how often", "")
    axes.margins(x=0.12)
    return made
