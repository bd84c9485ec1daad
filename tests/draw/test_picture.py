"""Figures with fixed margins have room for everything drawn."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie.draw.curves import loss_curve
from reverie.draw.picture import CLOUDS, DPI, dots, figure, pixels, png_bytes, save, square_axes


@pytest.mark.parametrize("loss", [1e-12, 0.03, 4e7])
def test_loss_curves_and_labels_lie_within_the_figure(loss: float) -> None:
    rows = [
        {"i": 10**k, "loss": loss / (k + 1), "held_out": loss / (k + 1), "held_out_levels": [loss / 3**k] * 4} for k in range(7)
    ]
    made = loss_curve(rows)
    height, width = pixels(made).shape[:2]
    left, right = (axes.get_tightbbox() for axes in made.axes)
    assert left.x0 >= 0 and left.x1 < right.x0 and right.x1 <= width
    assert min(left.y0, right.y0) >= 0 and max(left.y1, right.y1) <= height


def test_scatter_plots_lie_within_the_figure_and_round_trip(tmp_path: Path) -> None:
    made = figure(9, 3.3, CLOUDS)
    for axes in made.subplots(1, 3):
        dots(square_axes(axes, (-3, 3), "average weights"), np.random.default_rng(0).normal(size=(50, 2)))
    drawn = pixels(made)
    boxes = [axes.get_tightbbox() for axes in made.axes]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.y1 <= 330 for box in boxes) and boxes[0].x1 < boxes[1].x0
    save(made, tmp_path / "clouds.png")
    for file in (tmp_path / "clouds.png", io.BytesIO(png_bytes(made))):
        image = Image.open(file)
        assert np.array_equal(np.asarray(image), drawn) and round(image.info["dpi"][0]) == DPI
    save(made, tmp_path / "clouds.svg")
    assert "<svg" in (tmp_path / "clouds.svg").read_text()[:500]
