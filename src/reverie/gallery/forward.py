"""The forward process: data become noise along one Markov chain, as a sheet and as a film."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import check_folder
from reverie.base.noise import Noise, check_seed, image_seeds
from reverie.base.scalar import sqrt
from reverie.base.spec import Spec, build, format_spec
from reverie.data import load_data
from reverie.data.codec import CODECS, Codec, standard_spec
from reverie.data.in_memory import DataSource
from reverie.data.kind import Kind
from reverie.diffusion.process import chain
from reverie.diffusion.schedule import Schedule
from reverie.diffusion.schedules import SCHEDULES
from reverie.draw.picture import (
    INK,
    axis_limits,
    channels_last,
    contact_sheet,
    dots,
    figure,
    max_film_samples,
    pixels,
    save,
    set_suptitle,
    square_axes,
    to_bytes,
    with_heading,
    write_film,
)

FRAMES = 41  # of a film, from t = 0 to t = 1
SHOWN: dict[Kind, int] = {"points": 1000, "images": 9}
COLUMNS: dict[Kind, int] = {"points": 5, "images": 11}  # of a sheet, at times of the film

Moment = tuple[float, np.ndarray]  # a time, and the noised data in user units


def walk(schedule: Schedule, codec: Codec, x: Tensor, seed: int) -> list[Moment]:
    """Return data at the times of a film, along one Markov chain.  x: (n, ...) in user units.

    Noised data of variance-exploding schedules are divided by sqrt(alpha² + sigma²), so that they stay within the figure.
    """
    times = torch.linspace(0, 1, FRAMES, dtype=torch.float64)
    steps = chain(schedule, codec.encode(x), times, Noise(image_seeds(seed, len(x))))
    sizes = ((t, *schedule(t)) for t in times.tolist())
    return [
        (t, channels_last(codec.decode(z / max(1.0, float(sqrt(alpha**2 + sigma**2)))).numpy()))
        for z, (t, alpha, sigma) in zip(steps, sizes, strict=True)
    ]


def _caption(schedule: Schedule, t: float, separator: str = ", ") -> str:
    alpha, sigma = schedule(t)
    return separator.join([f"t = {t:.3g}", f"alpha {float(alpha):.2f}", f"sigma {float(sigma):.{2 if sigma < 10 else 0}f}"])


def _selected(moments: Sequence[Moment], kind: Kind) -> list[Moment]:
    return [moments[k] for k in np.linspace(0, len(moments) - 1, COLUMNS[kind]).round().astype(int)]


def sheet(schedule: Schedule, moments: Sequence[Moment], limits: tuple[float, float] | None = None) -> Figure:
    """Draw a few times side by side: points in the plane, or a column of images per time."""
    kind: Kind = "points" if moments[0][1].ndim == 2 else "images"
    chosen = _selected(moments, kind)
    if kind == "points":
        fig = figure(15, 3.6)
        limits = limits or axis_limits(np.concatenate([x[:, :2] for _, x in chosen]))
        for axes, (t, x) in zip(fig.subplots(1, len(chosen)), chosen, strict=True):
            dots(square_axes(axes, limits, _caption(schedule, t)), x)
        return fig
    columns = [contact_sheet(to_bytes(x), columns=1) for _, x in chosen]
    height, width = columns[0].shape[:2]
    fig = figure(1.25 * len(chosen), 1.2 * height / width + 0.7)
    for axes, (t, _), column in zip(fig.subplots(1, len(chosen)), chosen, columns, strict=True):
        axes.imshow(column, interpolation="nearest")
        axes.set_axis_off()
        axes.set_title(_caption(schedule, t, "\n"), fontsize=8, color=INK)
    return fig


def film(schedule: Schedule, moments: Sequence[Moment], limits: tuple[float, float] | None = None) -> Iterator[np.ndarray]:
    """Yield every time as a frame, (H, W, 3) uint8."""
    if moments[0][1].ndim > 2:
        for t, x in moments:
            yield with_heading(contact_sheet(to_bytes(x)), _caption(schedule, t))
        return
    limits = limits or axis_limits(np.concatenate([x[:, :2] for _, x in moments]))
    fig = figure(5, 5.2)
    axes = square_axes(fig.subplots(), limits)
    cloud = dots(axes, moments[0][1])
    for t, x in moments:
        cloud.set_offsets(np.pad(x, ((0, 0), (0, 1)))[:, :2])
        axes.set_title(_caption(schedule, t), fontsize=10, color=INK)
        yield pixels(fig)


def draw(
    data: DataSource, out: Path, *, schedule: str | Spec = "linear", seed: int = 0, reading: Mapping[str, Any] | None = None
) -> list[Path]:
    """Draw sheet and film of a dataset into a folder and return the files; reading: options of `load_data`."""
    check_folder(out)
    noise_schedule = build(SCHEDULES, schedule, "schedule")
    dataset = load_data(data, seed=check_seed(seed), **(reading or {}))
    if dataset.kind not in SHOWN:
        raise UserError(f"this gallery needs {' or '.join(SHOWN)}, and {dataset.name} has {dataset.kind}; give other data")
    x = dataset.subsample(min(SHOWN[dataset.kind], max_film_samples(dataset.shape)))
    codec = build(CODECS, {"name": "pixels"} if dataset.kind == "images" else standard_spec(x), "codec")
    moments = walk(noise_schedule, codec, x, seed)
    fig = sheet(noise_schedule, moments)
    set_suptitle(fig, f"{dataset.name}, schedule {format_spec(schedule)}")
    files = [out / "forward.png", out / "forward.gif"]
    save(fig, files[0])
    write_film(files[1], film(noise_schedule, moments))
    return files
