"""Interactive demos: formulas evaluated on a run or on typed input, as plain numbers and images for a page."""

from __future__ import annotations

from reverie.demos import denoising, forward_process, points2d, standalone
from reverie.demos.demo import Control, Demo

__all__ = ["DEMOS", "Control", "Demo"]

DEMOS: dict[str, Demo] = {
    **forward_process.DEMOS,
    **denoising.DEMOS,
    **points2d.DEMOS,
    **standalone.DEMOS,
}  # in reading order
