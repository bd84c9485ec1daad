"""The score of a model of points in the plane, and paths of DDIM in few and many steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.process import jump
from reverie.draw.picture import (
    ACCENT,
    INK,
    SOFT,
    WARM,
    axis_limits,
    check_picture,
    dots,
    figure,
    save,
    set_suptitle,
    square_axes,
)
from reverie.runs.run import Run, load

LEVELS = (0.05, 0.2, 0.5, 0.9)  # times of the score fields
STEPS = (1, 3, 10, 50)  # of DDIM
ARROWS, PATHS, POINTS = 21, 40, 500  # arrows on a side, paths, and points in the background


def arrows(limits: tuple[float, float], count: int = ARROWS) -> Tensor:
    """Return positions on a square grid: (count², 2) float32."""
    side = torch.linspace(*limits, count + 2)[1:-1]
    return torch.cartesian_prod(side, side)


@torch.no_grad()
def field(denoiser: Denoiser, positions: Tensor, t: float) -> Tensor:
    """Return sigma times the score, -E[eps | x], at positions in model units; its length is similar at all levels."""
    return -denoiser(positions, t).eps


def show_field(axes: Axes, positions: np.ndarray, vectors: np.ndarray, colour: str | list[str] = INK) -> None:
    """Draw arrows at positions; an arrow of length 3 spans the distance between two.  (n, 2) each."""
    spacing = float(np.ptp(positions[:, 0])) / (len(positions) ** 0.5 - 1)
    style = {"angles": "xy", "scale_units": "xy", "scale": 3 / spacing, "width": 0.004, "headwidth": 4, "zorder": 2}
    axes.quiver(*positions.T, *vectors.T, color=colour, **style)


def _paths(axes: Axes, run: Run, steps: int, seed: int, limits: tuple[float, float]) -> None:
    samples = run.sample(PATHS, sampler="ddim", steps=steps, film=True, seed=seed)
    path = np.stack([*(x for _, x, _ in samples.film), samples.x])  # (steps + 1, n, 2)
    square_axes(axes, limits, f"{steps} step{'s' if steps > 1 else ''} of DDIM")
    axes.add_collection(LineCollection(list(path.transpose(1, 0, 2)), colors=SOFT, linewidths=0.8, zorder=1))
    if steps <= 10:
        axes.scatter(path[1:-1, :, 0], path[1:-1, :, 1], s=6, c=SOFT, linewidths=0, zorder=2)
    axes.scatter(path[0, :, 0], path[0, :, 1], s=14, facecolors="none", edgecolors=ACCENT, linewidths=0.8, zorder=3)
    axes.scatter(path[-1, :, 0], path[-1, :, 1], s=14, c=WARM, linewidths=0, zorder=3)


def draw(run: str | Path | Run, out: Path, *, device: str = "auto", seed: int = 0) -> list[Path]:
    """Draw the figure of a run of points in the plane and return its file."""
    check_picture(out)
    run = run if isinstance(run, Run) else load(run, device)
    if run.config.data.shape != (2,):
        raise UserError(f"{run.path} is not a run of points in the plane, which this gallery needs; train one on 'spiral'")
    model = run.diffusion
    schedule = model.denoiser.schedule
    z = model.encode(torch.from_numpy(run.sample(POINTS, seed=seed).x).to(model.device))
    fig = figure(3.5 * len(LEVELS), 7.4)
    rows = fig.subplots(2, len(LEVELS))
    for axes, t in zip(rows[0], LEVELS, strict=True):
        noised = jump(schedule, z, t, Noise(image_seeds(seed, POINTS))).cpu()
        positions = arrows(axis_limits(noised.numpy()))
        alpha, sigma = schedule(t)
        square_axes(axes, axis_limits(noised.numpy()), f"t = {t:g}   alpha {float(alpha):.2f}   sigma {float(sigma):.2f}")
        dots(axes, noised.numpy(), SOFT)
        show_field(axes, positions.numpy(), field(model.denoiser, positions.to(z), t).cpu().numpy())
    noise = run.sample(PATHS, sampler="ddim", steps=1, film=True, seed=seed).film[0][1]
    limits = axis_limits(np.concatenate([noise, model.decode(z).cpu().numpy()]))
    for axes, steps in zip(rows[1], STEPS, strict=True):
        dots(axes, model.decode(z).cpu().numpy(), "#d5dbe1")
        _paths(axes, run, steps, seed, limits)
    caption = "sigma times the score of noised data, and paths from noise (rings) to samples (dots)"
    set_suptitle(fig, f"{run.config.data.name}: {caption}", 11)
    save(fig, out)
    return [out]
