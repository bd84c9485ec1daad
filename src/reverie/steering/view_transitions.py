"""Transitions between two views of a picture: a rotation if possible, otherwise a linear motion of each pixel."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from reverie.diffusion.views import Identity, InnerCircle, SizedView
from reverie.draw.picture import to_bytes


def interpolate_views(x: np.ndarray, start: SizedView, end: SizedView, fraction: float, factor: int) -> np.ndarray:
    """Return pictures between two views, enlarged by an integer factor.

    x: (N, H, W, C) in [0, 1]; fraction: progress from 0 to 1; returns (N, H', W', 3) uint8.
    """
    colour = np.broadcast_to(x[..., :3], (*x.shape[:3], 3))
    degrees = _rotation(start, end)
    if degrees is None or fraction in (0.0, 1.0):
        return _move(colour, start, end, fraction, factor)
    is_full = start.view.turn is not None and end.view.turn is not None
    return np.stack([_rotate(image, degrees * fraction, is_full) for image in _move(colour, start, start, 0.0, factor)])


def _rotation(start: SizedView, end: SizedView) -> float | None:
    """Return the rotation in degrees of the picture or its inner circle, or None if the views do not differ by a rotation."""
    a, b = start.view, end.view
    if a.turn is not None and b.turn is not None:
        return (b.turn - a.turn + 179) % 360 - 179
    if isinstance(a, Identity) and isinstance(b, InnerCircle):
        return b.angle
    if isinstance(a, InnerCircle) and isinstance(b, Identity):
        return -a.angle
    return None


def _rotate(image: np.ndarray, degrees: float, is_full: bool) -> np.ndarray:
    """Return an image, (H, W, 3) uint8, or only its inner disc, rotated counter-clockwise about the centre."""
    height, width = image.shape[:2]
    page = Image.fromarray(image)
    edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    fill = tuple(int(v) for v in np.median(edge, axis=0))
    rotated = page.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=fill)
    if is_full:
        return np.asarray(rotated)
    mask, radius = Image.new("L", page.size, 0), min(height, width) / 2
    box = (width / 2 - radius, height / 2 - radius, width / 2 + radius, height / 2 + radius)
    ImageDraw.Draw(mask).ellipse(box, fill=255)
    page.paste(rotated, (0, 0), mask)
    return np.asarray(page)


def _move(x: np.ndarray, start: SizedView, end: SizedView, fraction: float, factor: int) -> np.ndarray:
    """Return pictures with every pixel at a fraction of the straight line between its positions in two views."""
    count, height, width = x.shape[:3]
    positions = np.stack([start.inverse.numpy(), end.inverse.numpy()]).astype(np.float64)
    y_positions = (1 - fraction) * (positions[0] // width) + fraction * (positions[1] // width)
    x_positions = (1 - fraction) * (positions[0] % width) + fraction * (positions[1] % width)
    sign = (1 - fraction) * start.sign + fraction * end.sign
    pixels = to_bytes((sign * (2 * x - 1) + 1) / 2).reshape(count, height * width, 3)
    background = np.median(pixels, axis=1).astype(np.uint8)  # (N, 3), the background colour
    top, left = np.rint(y_positions * factor).astype(int), np.rint(x_positions * factor).astype(int)
    offsets = np.arange(factor)
    rows = (top[:, None, None] + offsets[:, None]).clip(0, height * factor - 1)
    columns = (left[:, None, None] + offsets).clip(0, width * factor - 1)
    out = np.broadcast_to(background[:, None, None], (count, height * factor, width * factor, 3)).copy()
    for k in range(count):  # pixels that differ most from the background are drawn last
        order = np.abs(pixels[k].astype(int) - background[k]).sum(1).argsort(kind="stable")
        out[k][rows[order], columns[order]] = pixels[k][order][:, None, None]
    return out
