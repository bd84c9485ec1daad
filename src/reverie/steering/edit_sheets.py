"""Sheets of edits and inversions, and films of interpolations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reverie.draw.picture import SOFT, coloured, contact_sheet, figure, save, set_suptitle, set_title, to_bytes, write_film

if TYPE_CHECKING:
    from reverie.steering.edit_results import Edits, Inversion

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGES_SHOWN = 12  # maximum number of images of an interpolation in a row
FILM_SIDE = 256  # minimum side of a film in pixels


def _image(axes: Axes, image: np.ndarray, title: str = "") -> None:
    """Show an image in [0, 1], (H, W[, C]), without axes."""
    axes.imshow(coloured(to_bytes(image)[None])[0], interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    set_title(axes, title)


def edit_sheet(edits: Edits, caption: str = "") -> Figure:
    """Draw the image on the left and its edits on the right: strengths as columns, seeds as rows."""
    columns, rows = len(edits.strengths), edits.x.shape[1]
    fig = figure(1.25 * (columns + 1) + 0.2, 1.25 * rows + 0.6)
    panels = fig.subplots(rows, columns + 1, squeeze=False)
    for row in range(rows):
        if row:
            panels[row, 0].axis("off")
        for column, strength in enumerate(edits.strengths, 1):
            _image(panels[row, column], edits.x[column - 1, row], f"strength {strength:g}" if row == 0 else "")
    _image(panels[0, 0], edits.image, "image")
    if caption:
        set_suptitle(fig, caption, colour=SOFT)
    return fig


def inversion_sheet(inversion: Inversion) -> Figure:
    """Draw the image, its noise, its reconstruction, and the magnified difference."""
    fig = figure(8.6, 2.7)
    panels = fig.subplots(1, 4)
    _image(panels[0], inversion.image, "image")
    _image(
        panels[1],
        np.clip(inversion.noise / 6 + 0.5, 0, 1),
        f"noise: mean {inversion.noise_mean:.2f}, std {inversion.noise_std:.2f}",
    )
    _image(panels[2], inversion.reconstruction, "reconstruction")
    difference = np.abs(inversion.image - inversion.reconstruction)
    factor = min(1000, max(1, round(0.5 / max(float(difference.max()), 1e-3))))
    _image(panels[3], np.clip(factor * difference, 0, 1), f"difference x {factor}: rms {inversion.error:.4f}")
    for axes in panels:
        axes.title.set_fontsize(9)
    return fig


def save_interpolation(images: np.ndarray, out: Path) -> None:
    """Write an interpolation as a film forwards and backwards (.gif, .mp4), or some of its images in a row (.png)."""
    if out.suffix.lower() == ".png":
        chosen = images[np.linspace(0, len(images) - 1, min(len(images), IMAGES_SHOWN)).round().astype(int)]
        fig = figure(0.9 * len(chosen), 1.0)
        axes = fig.subplots()
        axes.imshow(contact_sheet(to_bytes(chosen), columns=len(chosen)), interpolation="nearest")
        axes.axis("off")
        save(fig, out)
        return
    factor = max(1, -(-FILM_SIDE // max(images.shape[1:3])))
    write_film(out, _forwards_and_backwards(list(coloured(to_bytes(images), factor))), hold=0.5)


def _forwards_and_backwards(frames: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [*frames, *[frames[-1]] * 8, *reversed(frames)]
