"""The kinds of panels that a lesson is made of: pictures, curves, bars, planes, graphs and sentences, as plain values.

An array of bytes, (H, W) or (H, W, 3), is a picture; all other arrays are numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.data import Dataset
from reverie.draw.picture import to_bytes
from reverie.lessons.lesson import Panel
from reverie.runs.run import Run

Limits = tuple[float, float] | np.ndarray
CLOUD = 1200  # points of a cloud that are shown
FAR = 2.6  # standard deviations of noise that a plane shows
ALIKE = 2.0  # columns whose ranges differ by less than this factor share one scale
LOW, MIDDLE, HIGH = np.array([42, 102, 211.0]), np.array([255, 255, 255.0]), np.array([217, 99, 58.0])


def images(title: str, items: Iterable[tuple[str, np.ndarray]], large: bool = False) -> Panel:
    """Pictures side by side, each with its title."""
    return {"kind": "images", "title": title, "large": large, "items": [{"title": name, "image": x} for name, x in items]}


def curves(
    title: str, x: Any, series: Sequence[tuple[str, Any]], xlabel: str = "", mark: float | None = None, log: bool = False
) -> Panel:
    """Curves over one axis; mark: a place on it."""
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
    """Numbers as bars."""
    return {"kind": "bars", "title": title, "unit": unit, "items": [{"name": n, "value": float(v)} for n, v in items]}


def says(*lines: str) -> Panel:
    """Sentences with figures."""
    return {"kind": "says", "lines": list(lines)}


def plane(title: str, limits: Limits, **layers: Any) -> Panel:
    """A plane; layers: dots, arrows and paths, each a list of {"points": (n, 2), "colour": k, ...}; a picture is `below`.

    limits: of x and y, one pair for both or one each; axes: the names of the columns, with which ticks are drawn.
    """
    return {"kind": "plane", "title": title, "limits": np.asarray(limits, float), **layers}


def limits_of(points: np.ndarray, margin: float = 0.1) -> np.ndarray:
    """Return limits for x and y that hold nearly all of the points with a margin, (2, 2); ranges that are alike share a scale.

    points: (N, 2 or more).
    """
    low, high = np.quantile(points[:, :2], [0.002, 0.998], axis=0)
    half = np.maximum((high - low) / 2, 1e-6) * (1 + 2 * margin)
    if half.max() < ALIKE * half.min():
        half = np.full_like(half, half.max())
    return np.stack([(low + high) / 2 - half, (low + high) / 2 + half], -1)


def axes_of(run: Run) -> list[str]:
    """Return the names of the two columns that a plane shows, empty where they have none."""
    return [*run.config.data.columns, "", ""][:2]


def planes(panels: Sequence[Panel]) -> Panel:
    """Planes side by side."""
    return {"kind": "planes", "items": list(panels)}


def dots(x: Tensor | np.ndarray, colour: int = 0, **how: Any) -> dict[str, Any]:
    """A layer of dots.  x: (n, 2)."""
    return {"points": rounded(np.asarray(x, float)[:, :2]), "colour": colour, **how}


def rounded(places: np.ndarray) -> np.ndarray:
    """Return places in the plane as one row of numbers, with four digits behind the first of the largest."""
    most = float(np.abs(places[np.isfinite(places)]).max(initial=1e-12))
    return places.ravel().round(4 - int(np.floor(np.log10(max(most, 1e-12)))))


def heat(values: np.ndarray, most: float | None = None) -> np.ndarray:
    """Return numbers as colours: blue below 0, white at 0, orange above.  values: (H, W) -> (H, W, 3) uint8."""
    share = (values / max(most or float(np.abs(values).max()), 1e-12)).clip(-1, 1)[..., None]
    colours = np.where(share < 0, MIDDLE - share * (LOW - MIDDLE), MIDDLE + share * (HIGH - MIDDLE))
    return np.asarray(colours.round(), np.uint8)


class Subject:
    """What a lesson about a run looks at: one image of its data, or one that was sent, or many of its points.

    x0: (1, ...) of images, (n, D) of points, in model units; cond: their labels, where there are any.
    """

    def __init__(self, run: Run, data: Dataset, picture: np.ndarray | None, number: int = 0) -> None:
        self.run, self.images = run, run.kind == "images"
        chosen = torch.tensor([number % len(data)]) if self.images else torch.arange(min(CLOUD, len(data)))
        x, labels = data.batch(chosen)
        if picture is not None:
            x, labels = torch.from_numpy(picture)[None], None
        self.cond = labels.to(run.model.device) if labels is not None else None
        self.name = data.label_names[int(labels[0])] if labels is not None and self.images else ""
        with torch.no_grad():
            self.x0 = run.model.encode(x.to(run.model.device))
        self.limits: Limits = (-3.2, 3.2)
        if not self.images:
            far = FAR * torch.ones_like(self.x0[:1])  # how far noise reaches
            self.limits = limits_of(np.concatenate([self.user(x) for x in (self.x0, far, -far)]))

    def user(self, z: Tensor) -> np.ndarray:
        """Return model units as users know them."""
        return self.run.decode(z)

    def seen(self, title: str, z: Tensor, colour: int = 0) -> Any:
        """Return data as a picture with a title, or as a plane."""
        if self.images:
            return title, to_bytes(self.user(z)[0])
        return plane(title, self.limits, dots=[dots(self.user(z), colour)], axes=axes_of(self.run))

    def raw(self, title: str, z: Tensor, scale: float = 2.0) -> Any:
        """Return numbers that are no data, such as noise or a score, grey where they are 0; of points, arrows from them."""
        if self.images:
            grey = (z[0] / (2 * scale) + 0.5).float().cpu().numpy()
            channels = grey if len(grey) in (1, 3) else grey.mean(0, keepdims=True)
            return title, to_bytes(channels[0] if len(channels) == 1 else np.moveaxis(channels, 0, -1))
        return plane(title, (-1.6 * scale, 1.6 * scale), dots=[dots(z.float().cpu().numpy(), 1)])

    def panel(self, title: str, *parts: Any) -> Panel:
        """Return what `seen` and `raw` gave as one panel."""
        return images(title, parts) if self.images else planes(parts)


def rms(x: Tensor) -> float:
    """Return the root mean square."""
    return float(x.float().square().mean().sqrt())
