"""The spiral from data to noise and back, compared with the optimal denoiser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from reverie.base.errors import UserError
from reverie.base.files import check_folder
from reverie.base.noise import Noise, image_seeds
from reverie.data import load_data
from reverie.data.curve import THETA_MAX, THETA_MIN, closest_on_spiral, spiral_curve
from reverie.draw.curves import loss_curve
from reverie.draw.picture import ACCENT, INK, SOFT, WARM, dots, figure, pixels, save, square_axes, write_film
from reverie.gallery import forward
from reverie.runs.run import Run, load
from reverie.runs.samples import Samples
from reverie.runs.sampling_options import Options

LIMITS = (-2.0, 2.0)
POINTS, SHOWN = 1000, 200


def _curve(axes: Axes) -> None:
    line = spiral_curve(np.linspace(THETA_MIN, THETA_MAX, 600))
    axes.plot(line[:, 0], line[:, 1], color=SOFT, lw=1.5, zorder=0)


def _segments(axes: Axes, points: np.ndarray, closest: np.ndarray) -> None:
    axes.add_collection(LineCollection(list(np.stack([points, closest], 1)), colors=INK, linewidths=0.5, alpha=0.5))


def reverse(samples: Samples) -> Figure:
    """Draw five times of the reverse process, with a line from each point to the closest point of the curve."""
    fig = figure(15, 3.4)
    moments = [
        *(samples.film[k][:2] for k in np.linspace(0, len(samples.film) - 1, 5).round().astype(int)[:-1]),
        (0.0, samples.x),
    ]
    for axes, (t, x) in zip(fig.subplots(1, 5), moments, strict=True):
        theta, distance = closest_on_spiral(x)
        square_axes(axes, LIMITS, f"t = {t:.2f}   mean distance {distance.mean():.3f}")
        _curve(axes)
        _segments(axes, x[:SHOWN], spiral_curve(theta)[:SHOWN])
        dots(axes, x[:SHOWN])
    return fig


def distances(samples: Samples) -> Figure:
    """Draw the mean distance to the curve over time, for x and for the estimate of x0."""
    fig = figure(6, 4)
    axes = fig.subplots()
    times = [t for t, _, _ in samples.film]
    clouds = (("x", ACCENT, [x for _, x, _ in samples.film]), ("estimate of x0", WARM, [x0 for _, _, x0 in samples.film]))
    for name, colour, frames in clouds:
        means = [closest_on_spiral(points)[1].mean() for points in frames]
        axes.plot(times, means, color=colour, label=f"{name}, ends at {means[-1]:.4f}")
    axes.set(xlabel="t (noise on the left, data on the right)", ylabel="mean distance to the curve", yscale="log")
    axes.invert_xaxis()
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return fig


def optimal_frames(seed: int, steps: int = 40) -> Iterator[np.ndarray]:
    """Yield frames in which each noisy point moves straight to the closest point of the curve."""
    fig = figure(5, 5.2)
    axes = square_axes(fig.subplots(), LIMITS)
    _curve(axes)
    noise = Noise(image_seeds(seed, SHOWN * 2)).like(torch.empty(SHOWN * 2, 2, dtype=torch.float64)).numpy() * 0.7
    theta, _ = closest_on_spiral(noise)
    end = spiral_curve(theta)
    _segments(axes, noise, end)
    cloud = dots(axes, noise, WARM)
    for k in range(steps + 1):
        points = noise + (end - noise) * k / steps
        cloud.set_offsets(points)
        mean = float(np.linalg.norm(points - end, axis=1).mean())
        axes.set_title(f"optimal denoising, mean distance {mean:.3f}", fontsize=10, color=INK)
        yield pixels(fig)


def draw(run: str | Path | Run, out: Path, *, device: str = "auto", **options: Unpack[Options]) -> list[Path]:
    """Draw all figures of a run on the spiral into a folder and return the files."""
    run = run if isinstance(run, Run) else load(run, device)
    if run.config.data.name != "spiral":
        raise UserError(f"{run.path} was trained on {run.config.data.name!r}; this gallery needs a run on 'spiral'")
    check_folder(out)
    samples = run.sample(POINTS, film=True, **options)
    seed = options.get("seed", 0)
    schedule = run.diffusion.denoiser.schedule
    data, _ = load_data("spiral", POINTS, seed).batch(torch.arange(POINTS))
    moments = forward.walk(schedule, run.diffusion.codec, data, seed)
    pictures = {
        "forward.png": forward.sheet(schedule, moments, LIMITS),
        "reverse.png": reverse(samples),
        "distance.png": distances(samples),
        "history.png": loss_curve(run.metrics()),
    }
    for name, fig in pictures.items():
        save(fig, out / name)
    films = {"forward.gif": forward.film(schedule, moments, LIMITS), "optimal.gif": optimal_frames(seed)}
    for name, frames in films.items():
        write_film(out / name, frames)
    return [out / name for name in (*pictures, *films)]
