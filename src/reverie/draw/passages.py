"""Images of text samples."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from reverie.draw.picture import INK, SOFT, figure, matplotlib_text, png_bytes

WIDTH, LINES = 64, 7  # characters per line, and lines per sample


def passage_picture(texts: Sequence[str]) -> bytes:
    """Return the beginnings of texts, one below the other, as a PNG file."""
    fig = figure(5.6, 0.3 + 1.25 * len(texts), {"left": 0.02, "right": 0.99, "top": 0.98, "bottom": 0.02})
    axes = fig.subplots()
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(len(texts), 0))
    for k, text in enumerate(texts):
        lines = [line for part in text.splitlines() for line in textwrap.wrap(part, WIDTH) or [""]]
        shown = "\n".join(matplotlib_text(line) for line in lines[:LINES])
        axes.text(0, k + 0.06, shown, fontsize=7.5, color=INK, family="monospace", va="top", linespacing=1.25)
        axes.axhline(k + 0.99, color=SOFT, lw=0.5)
    return png_bytes(fig)
