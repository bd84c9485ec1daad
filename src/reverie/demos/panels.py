"""The kinds of panels that demos return: images, curves, bars, 2-D plots, graphs and text, as plain values.

An array of bytes, (H, W) or (H, W, 3), is an image; all other arrays are numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.data import Dataset
from reverie.demos.demo import Panel
from reverie.draw.picture import to_bytes
from reverie.runs.run import Run

Limits = tuple[float, float] | np.ndarray
MAX_SHOWN = 1200  # points of a dataset in a scatter plot
NOISE_RANGE = 2.6  # standard deviations of noise that a plot covers
SHARED_SCALE = 2.0  # columns share one scale if their ranges differ by less than this factor
LOW, MIDDLE, HIGH = np.array([42, 102, 211.0]), np.array([255, 255, 255.0]), np.array([217, 99, 58.0])


def images(title: str, items: Iterable[tuple[str, np.ndarray]], large: bool = False) -> Panel:
    """Return images side by side, each with its title."""
    return {"kind": "images", "title": title, "large": large, "items": [{"title": name, "image": x} for name, x in items]}


def curves(
    title: str, x: Any, series: Sequence[tuple[str, Any]], xlabel: str = "", mark: float | None = None, log: bool = False
) -> Panel:
    """Return curves over one axis.  mark: the x of a vertical line; log: a logarithmic y-axis."""
    rows = [{"name": name, "y": np.asarray(y, float)} for name, y in series]
    return {
        "kind": "curves",
        "title": title,
        "x": np.asarray(x, float),
        "series": rows,
        "xlabel": xlabel,
        "mark": mark,
        "log": log,
    }


def bars(title: str, items: Iterable[tuple[str, float]], unit: str = "") -> Panel:
    """Return a bar chart."""
    return {"kind": "bars", "title": title, "unit": unit, "items": [{"name": n, "value": float(v)} for n, v in items]}


def text(*lines: str) -> Panel:
    """Return lines of text."""
    return {"kind": "text", "lines": list(lines)}


def plot2d(title: str, limits: Limits, **layers: Any) -> Panel:
    """Return a 2-D plot.

    limits: of x and y, one pair for both or one each; layers: `dots`, `arrows` and `paths`, each a list of
    {"points": (n, 2), "colour": k, ...}; `background`: an image; `axes`: names of the columns, which adds ticks.
    """
    return {"kind": "plot2d", "title": title, "limits": np.asarray(limits, float), **layers}


def axis_limits(points: np.ndarray, margin: float = 0.1) -> np.ndarray:
    """Return limits of x and y, (2, 2), around nearly all points with a margin; similar ranges share one scale.

    points: (N, 2 or more).
    """
    low, high = np.quantile(points[:, :2], [0.002, 0.998], axis=0)
    half = np.maximum((high - low) / 2, 1e-6) * (1 + 2 * margin)
    if half.max() < SHARED_SCALE * half.min():
        half = np.full_like(half, half.max())
    return np.stack([(low + high) / 2 - half, (low + high) / 2 + half], -1)


def axis_names(run: Run) -> list[str]:
    """Return the names of the first two columns, empty strings for columns without a name."""
    return [*run.config.data.columns, "", ""][:2]


def plots2d(panels: Sequence[Panel]) -> Panel:
    """Return 2-D plots side by side."""
    return {"kind": "plots2d", "items": list(panels)}


def dots(x: Tensor | np.ndarray, colour: int = 0, **style: Any) -> dict[str, Any]:
    """Return a layer of dots.  x: (n, 2)."""
    return {"points": round_points(np.asarray(x, float)[:, :2]), "colour": colour, **style}


def round_points(points: np.ndarray) -> np.ndarray:
    """Return points as one flat array, rounded to four digits after the leading one of the largest."""
    largest = float(np.abs(points[np.isfinite(points)]).max(initial=1e-12))
    return points.ravel().round(4 - int(np.floor(np.log10(max(largest, 1e-12)))))


def heatmap(values: np.ndarray, most: float | None = None) -> np.ndarray:
    """Return numbers as colours: blue below 0, white at 0, orange above.  values: (H, W) -> (H, W, 3) uint8."""
    scaled = (values / max(most or float(np.abs(values).max()), 1e-12)).clip(-1, 1)[..., None]
    colours = np.where(scaled < 0, MIDDLE - scaled * (LOW - MIDDLE), MIDDLE + scaled * (HIGH - MIDDLE))
    return np.asarray(colours.round(), np.uint8)


class Subject:
    """The data on which a demo is evaluated: one image of the dataset, one uploaded image, or many points.

    x0: (1, ...) for images, (n, D) for points, in model units; cond: labels, or None.
    """

    def __init__(self, run: Run, data: Dataset, image: np.ndarray | None, number: int = 0) -> None:
        self.run, self.is_image = run, run.kind == "images"
        indices = torch.tensor([number % len(data)]) if self.is_image else torch.arange(min(MAX_SHOWN, len(data)))
        x, labels = data.batch(indices)
        if image is not None:
            x, labels = torch.from_numpy(image)[None], None
        self.cond = labels.to(run.model.device) if labels is not None else None
        with torch.no_grad():
            self.x0 = run.model.encode(x.to(run.model.device))
        self.limits: Limits = (-3.2, 3.2)
        if not self.is_image:
            noise = NOISE_RANGE * torch.ones_like(self.x0[:1])
            self.limits = axis_limits(np.concatenate([run.decode(x) for x in (self.x0, noise, -noise)]))

    def show_data(self, title: str, z: Tensor, colour: int = 0) -> Any:
        """Return data in model units as an image with a title, or as a 2-D plot in user units."""
        if self.is_image:
            return title, to_bytes(self.run.decode(z)[0])
        return plot2d(title, self.limits, dots=[dots(self.run.decode(z), colour)], axes=axis_names(self.run))

    def show_values(self, title: str, z: Tensor, scale: float = 2.0) -> Any:
        """Return noise, a score or other values: of images with 0 as grey, of points as a 2-D plot."""
        if self.is_image:
            grey = (z[0] / (2 * scale) + 0.5).float().cpu().numpy()
            channels = grey if len(grey) in (1, 3) else grey.mean(0, keepdims=True)
            return title, to_bytes(channels[0] if len(channels) == 1 else np.moveaxis(channels, 0, -1))
        return plot2d(title, (-1.6 * scale, 1.6 * scale), dots=[dots(z.float().cpu().numpy(), 1)])

    def panel(self, title: str, *parts: Any) -> Panel:
        """Return the results of `show_data` and `show_values` as one panel."""
        return images(title, parts) if self.is_image else plots2d(parts)


def rms(x: Tensor) -> float:
    """Return the root mean square."""
    return float(x.float().square().mean().sqrt())
