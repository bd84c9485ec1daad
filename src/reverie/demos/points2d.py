"""Demos for models of 2-D points: vector fields, the density, and trajectories."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.spec import build
from reverie.data import Dataset
from reverie.data.dataset import evenly_spaced_indices
from reverie.demos.demo import Control, Demo
from reverie.demos.panels import axis_limits, axis_names, dots, plot2d, plots2d, rms, round_points, text
from reverie.diffusion.denoiser import Denoiser, WithCondition
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.samplers import GRIDS, SAMPLERS, start, trajectory
from reverie.runs.run import Run

ARROWS, CELLS, MAX_DATA = 22, 40, 4000  # arrows and density cells per side; data of the optimal denoiser
BOTH = "network and optimal denoiser"
MAX_SHOWN = 600  # noisy data behind the arrows
MARGIN = 1.15  # of the plotted range over that of the data


def check_points2d(run: Run) -> None:
    """Raise UserError unless the data are 2-D points."""
    if tuple(run.config.data.shape) != (2,):
        shape = " x ".join(map(str, run.config.data.shape))
        raise UserError(f"the demo needs a run of 2-D points, got data of shape {shape}; train one: reverie train spiral")


def _conditioned(run: Run, label: str) -> Denoiser:
    names = run.config.data.labels
    if not label or not names:
        return run.diffusion.denoiser
    if label not in names:
        raise UserError(f"the run has no label {label!r}; choose one of: {', '.join(names)}")
    return WithCondition(run.diffusion.denoiser, torch.tensor([names.index(label)], device=run.model.device))


def _optimal(run: Run, data: Dataset, label: str) -> Denoiser:
    """Return the optimal denoiser of the data, or of the data with a label."""
    x, labels = data.batch(evenly_spaced_indices(len(data), MAX_DATA))
    if label and labels is not None and label in run.config.data.labels:
        x = x[labels == run.config.data.labels.index(label)]
    return DatasetDenoiser(run.diffusion.denoiser.schedule, run.model.encode(x.to(run.model.device)))


def _grid(run: Run, data: Dataset, t: float, count: int) -> tuple[np.ndarray, Tensor]:
    """Return axis limits at a time in user units, (2, 2), and a grid of points in model units, (count², 2)."""
    alpha, sigma = (float(c) for c in run.diffusion.denoiser.schedule(t))
    x0 = run.model.encode(data.subsample(2000).to(run.model.device))
    radius = MARGIN * float(torch.quantile((x0.square() * alpha**2 + 6 * sigma**2).sqrt(), 0.995))
    line = torch.linspace(-radius, radius, count)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)
    corners = run.decode(torch.tensor([[-radius, -radius], [radius, radius]], device=run.model.device))
    return corners.T, grid.to(run.model.device)


def _vectors(denoiser: Denoiser, x: Tensor, t: float, kind: str) -> Tensor:
    inner = denoiser
    if isinstance(denoiser, WithCondition) and denoiser.cond is not None:
        inner = WithCondition(denoiser.inner, denoiser.cond.expand(len(x)))
    alpha, sigma = (float(c) for c in inner.schedule(t))
    if kind == "score":
        return sigma * inner.score(x, t)  # scaled to a similar length at every noise level
    if kind == "velocity":
        return inner.velocity(x, t)
    return inner(x, t).x0 - x / max(alpha, 1e-3)


@torch.no_grad()
def field(
    run: Run, data: Dataset, image: np.ndarray | None, t: float, arrows: str, fields: str, label: str, seed: int
) -> dict[str, Any]:
    """Return arrows on a grid: of the network and of the optimal denoiser, or their difference."""
    check_points2d(run)
    t = max(t, run.diffusion.denoiser.schedule.t_min)
    limits, grid = _grid(run, data, t, ARROWS)
    network, optimal = (_vectors(d, grid, t, arrows) for d in (_conditioned(run, label), _optimal(run, data, label)))
    scale = 2 * MARGIN / ARROWS * float(grid.abs().max()) / max(float(torch.quantile(optimal.norm(dim=1), 0.9)), 1e-6)
    alpha, sigma = (float(c) for c in run.diffusion.denoiser.schedule(t))
    x0 = run.model.encode(data.batch(evenly_spaced_indices(len(data), MAX_SHOWN))[0].to(grid.device))
    noisy = dots(run.decode(alpha * x0 + sigma * Noise(image_seeds(seed, len(x0))).like(x0)), 7, alpha=0.4)
    origin, start_points = run.decode(torch.zeros(1, 2, device=grid.device)), round_points(run.decode(grid))
    fields_by_name = (
        {"network": network, "optimal denoiser": optimal} if fields == BOTH else {"network minus optimal": network - optimal}
    )
    panels = []
    for k, (name, vectors) in enumerate(fields_by_name.items()):
        offsets = round_points(run.decode(vectors * scale * 0.9) - origin)
        layer = {"from": start_points, "by": offsets, "colour": k}
        panels.append(plot2d(f"{arrows}, {name}, t = {t:.2f}", limits, dots=[noisy], arrows=[layer], axes=axis_names(run)))
    error = rms(network - optimal) / max(rms(optimal), 1e-9)
    line = text(f"relative RMS error of the network on the grid: {error:.1%}")
    return {"panels": [plots2d(panels), line]}


def density(run: Run, data: Dataset, image: np.ndarray | None, label: str) -> dict[str, Any]:
    """Return the density by the probability flow at the centres of grid cells, in user units, with some data."""
    check_points2d(run)
    limits, _ = _grid(run, data, run.diffusion.denoiser.schedule.t_min, CELLS)
    (x, width), (y, height) = (_cell_centres(low, high) for low, high in limits)
    points = torch.from_numpy(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)).float().to(run.model.device)
    names = run.config.data.labels
    cond = torch.full((len(points),), names.index(label)) if label in names else None
    log_prob = run.diffusion.log_prob(points, cond, image_seeds(0, len(points)), tolerance=1e-3)
    p = log_prob.nats.detach().float().cpu().numpy().reshape(CELLS, CELLS)[::-1]
    share = np.exp(p - p.max())
    shade = np.stack([42 + 0 * share, 102 + 0 * share, 211 + 0 * share, 235 * share**0.5], -1).round().astype(np.uint8)
    data_dots = dots(data.subsample(500).numpy(), 7, alpha=0.35)
    integral = float(np.exp(p.astype(np.float64)).sum() * width * height)
    return {
        "panels": [
            plot2d("density by the probability flow", limits, background=shade, dots=[data_dots], axes=axis_names(run)),
            text(
                f"integral over the plotted area: {integral:.2f} (1 over the whole plane)",
                f"maximum density: {float(np.exp(p.max())):.3g} in the units of the data",
            ),
        ]
    }


def _cell_centres(low: float, high: float) -> tuple[np.ndarray, float]:
    """Return the centres of CELLS cells between two limits, and the width of a cell."""
    width = (high - low) / CELLS
    return low + width * (np.arange(CELLS) + 0.5), width


@torch.no_grad()
def paths(
    run: Run,
    data: Dataset,
    image: np.ndarray | None,
    noise: list[list[float]],
    steps: int,
    label: str,
    seed: int,
    **chosen: str,
) -> dict[str, Any]:
    """Return the trajectories of one point from pure noise to data by several samplers."""
    check_points2d(run)
    denoiser = _conditioned(run, label)
    model = run.diffusion
    names = [name for name in dict.fromkeys(chosen.values()) if name != "none"]
    grid = GRIDS["uniform"]()(denoiser.schedule, steps)
    alpha, sigma = (float(c) for c in denoiser.schedule(float(grid[0])))
    size = (alpha**2 + sigma**2) ** 0.5
    unit = torch.tensor(noise[:1], dtype=torch.float32, device=model.device)
    trajectories: list[dict[str, Any]] = []
    lines = []
    for k, name in enumerate(names):
        sampler = build(SAMPLERS, name, "sampler")
        frames = list(
            trajectory(denoiser, sampler, start(denoiser.schedule, float(grid[0]), unit), grid, Noise(image_seeds(seed, 1)))
        )
        points = run.decode(torch.cat([*(f.x for f in frames), frames[-1].x0]))
        trajectories.append({"points": round_points(points), "colour": k, "ends": True})
        lines.append(f"{name}: ends at ({points[-1][0]:.3f}, {points[-1][1]:.3f})")
    plotted = [data.subsample(500).numpy(), *(path["points"].reshape(-1, 2) for path in trajectories)]
    corners = np.concatenate([np.stack([points.min(0), points.max(0)]) for points in plotted])
    origin, unit_point = run.decode(torch.tensor([[0.0, 0.0], [size, size]], device=model.device))
    data_dots = dots(data.subsample(800).numpy(), 7, alpha=0.4)
    units = {"origin": origin, "unit": unit_point - origin}  # of standard deviations of the noise, for a click on the plot
    title, names2d = "trajectories from the same noise", axis_names(run)
    panel = plot2d(title, axis_limits(corners), dots=[data_dots], paths=trajectories, axes=names2d, **units)
    return {"panels": [panel, text(*lines)], "names": names}


_NAMES = ("none", *SAMPLERS)
_LABEL = Control("label", "Label", "", "choice")

DEMOS = {
    "field": Demo(
        "Vector fields",
        "At every point and time the model predicts a direction. "
        "The score points to where noisy data are dense; the velocity is the direction of the probability flow. "
        "The optimal denoiser is the exact posterior mean for the training data, which a network only approximates.",
        r"\nabla_x \log p_t(x) = -\frac{\hat{\varepsilon}(x, t)}{\sigma}, \qquad v(x, t) = \dot{\alpha}\, \hat{x}_0 + "
        r"\dot{\sigma}\, \hat{\varepsilon}",
        "reverie gallery score RUN",
        field,
        (
            Control("t", "Time t", 0.4, low=0.0, high=1.0),
            Control("arrows", "Arrows", "score", "choice", choices=("score", "velocity", "direction to x0")),
            Control("fields", "Fields", BOTH, "choice", choices=(BOTH, "difference")),
            _LABEL,
            Control("seed", "Noise seed", 0, "integer", 0, 999, 1),
        ),
        requires="points2d",
    ),
    "density": Demo(
        "Density",
        "The probability flow is invertible, and the divergence of its velocity gives the change of log-density along it. "
        "So a diffusion model has an exact density at every point. "
        "Darker is denser.",
        r"\log p(x_0) = \log p(x_1) + \int_0^1 \nabla \cdot v(x_t, t)\, dt",
        "reverie evaluate RUN",
        density,
        (_LABEL,),
        requires="points2d",
    ),
    "paths": Demo(
        "Trajectories",
        "All samplers start from the same noise. "
        "Deterministic samplers end close to each other, closer with more steps. "
        "Stochastic samplers add fresh noise, so their trajectories differ.",
        r"x_{1} \to \cdots \to x_t \to x_s \to \cdots \to x_0",
        "reverie gallery samplers RUN",
        paths,
        (
            Control("noise", "Initial noise, in standard deviations", [[1.0, -0.7]], "points", -3.0, 3.0),
            Control("steps", "Steps", 16, "integer", 2, 100, 1),
            *(
                Control(f"s{k + 1}", f"Sampler {k + 1}", name if name in SAMPLERS else "none", "choice", choices=_NAMES)
                for k, name in enumerate(("ddim", "heun", "dpm++2m", "ddpm"))
            ),
            _LABEL,
            Control("seed", "Noise seed", 0, "integer", 0, 999, 1),
        ),
        requires="points2d",
    ),
}
