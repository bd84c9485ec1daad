"""Transitions between two views of a picture: a rotation where possible, otherwise a motion of each pixel."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from reverie.diffusion.views import Identity, InnerCircle, SizedView
from reverie.draw.picture import to_bytes


def interpolate_views(x: np.ndarray, start: SizedView, end: SizedView, share: float, factor: int) -> np.ndarray:
    """Return pictures between two views, enlarged by an integer factor.

    x: (N, H, W, C) in [0, 1]; share: how far, 0 to 1; returns (N, H', W', 3) uint8.
    """
    colour = np.broadcast_to(x[..., :3], (*x.shape[:3], 3))
    turn = _turn(start, end)
    if turn is None or share in (0.0, 1.0):
        return _moved(colour, start, end, share, factor)
    whole = start.view.turn is not None and end.view.turn is not None
    return np.stack([_turned(image, turn * share, whole) for image in _moved(colour, start, start, 0.0, factor)])


def _turn(start: SizedView, end: SizedView) -> float | None:
    """Return the angle in degrees by which the picture, or its inner circle, turns, or None if the views differ otherwise."""
    a, b = start.view, end.view
    if a.turn is not None and b.turn is not None:
        return (b.turn - a.turn + 179) % 360 - 179
    if isinstance(a, Identity) and isinstance(b, InnerCircle):
        return b.angle
    if isinstance(a, InnerCircle) and isinstance(b, Identity):
        return -a.angle
    return None


def _turned(image: np.ndarray, degrees: float, whole: bool) -> np.ndarray:
    """Return an image, (H, W, 3) uint8, or only its inner disc, turned counter-clockwise about the center."""
    height, width = image.shape[:2]
    page = Image.fromarray(image)
    edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    fill = tuple(int(v) for v in np.median(edge, axis=0))
    turned = page.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=fill)
    if whole:
        return np.asarray(turned)
    mask, radius = Image.new("L", page.size, 0), min(height, width) / 2
    box = (width / 2 - radius, height / 2 - radius, width / 2 + radius, height / 2 + radius)
    ImageDraw.Draw(mask).ellipse(box, fill=255)
    page.paste(turned, (0, 0), mask)
    return np.asarray(page)


def _moved(x: np.ndarray, start: SizedView, end: SizedView, share: float, factor: int) -> np.ndarray:
    """Return pictures with every pixel a share of the straight line from its place in one view to that in another."""
    count, height, width = x.shape[:3]
    places = np.stack([start.inverse.numpy(), end.inverse.numpy()]).astype(np.float64)
    y = (1 - share) * (places[0] // width) + share * (places[1] // width)
    across = (1 - share) * (places[0] % width) + share * (places[1] % width)
    sign = (1 - share) * start.sign + share * end.sign
    pixels = to_bytes((sign * (2 * x - 1) + 1) / 2).reshape(count, height * width, 3)
    ground = np.median(pixels, axis=1).astype(np.uint8)  # (N, 3), the colour of places without a pixel
    top, left = np.rint(y * factor).astype(int), np.rint(across * factor).astype(int)
    inside = np.arange(factor)
    rows = (top[:, None, None] + inside[:, None]).clip(0, height * factor - 1)
    columns = (left[:, None, None] + inside).clip(0, width * factor - 1)
    out = np.broadcast_to(ground[:, None, None], (count, height * factor, width * factor, 3)).copy()
    for k in range(count):  # the pixels that differ most from the ground come last
        order = np.abs(pixels[k].astype(int) - ground[k]).sum(1).argsort(kind="stable")
        out[k][rows[order], columns[order]] = pixels[k][order][:, None, None]
    return out
