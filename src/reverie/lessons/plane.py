"""Lessons about models of points in the plane: the field, the density, and the ways of one point."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.spec import build
from reverie.data import Dataset
from reverie.data.dataset import spread
from reverie.diffusion.denoiser import Denoiser, WithCondition
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.samplers import GRIDS, SAMPLERS, start, trajectory
from reverie.lessons.lesson import Control, Lesson
from reverie.lessons.show import axes_of, dots, limits_of, plane, planes, rms, rounded, says
from reverie.runs.run import Run

SIDE, FINE, KNOWN = 22, 40, 4000  # arrows and cells along an edge, and data that the optimal denoiser knows
BOTH = "network and optimum"
CLOUD = 600  # noised data that are shown below the arrows
EDGE = 1.15


def check_plane(run: Run) -> None:
    """Refuse a run whose data are not points in the plane."""
    if tuple(run.config.data.shape) != (2,):
        raise UserError("this needs a run of points in the plane, such as one of: spiral, moons, patterns")


def _conditioned(run: Run, label: str) -> Denoiser:
    names = run.config.data.labels
    if not label or not names:
        return run.diffusion.denoiser
    if label not in names:
        raise UserError(f"the run has no label {label!r}; choose from: {', '.join(names)}")
    return WithCondition(run.diffusion.denoiser, torch.tensor([names.index(label)], device=run.model.device))


def _optimum(run: Run, data: Dataset, label: str) -> Denoiser:
    """Return the best denoiser for the data, those of a label where one is given."""
    x, labels = data.batch(spread(len(data), KNOWN))
    if label and labels is not None and label in run.config.data.labels:
        x = x[labels == run.config.data.labels.index(label)]
    return DatasetDenoiser(run.diffusion.denoiser.schedule, run.model.encode(x.to(run.model.device)))


def _places(run: Run, data: Dataset, t: float, count: int) -> tuple[np.ndarray, Tensor]:
    """Return limits of the plane at a time in user units, (2, 2), and a grid of places on it in model units, (count², 2)."""
    alpha, sigma = (float(c) for c in run.diffusion.denoiser.schedule(t))
    x0 = run.model.encode(data.some(2000).to(run.model.device))
    far = EDGE * float(torch.quantile((x0.square() * alpha**2 + 6 * sigma**2).sqrt(), 0.995))
    line = torch.linspace(-far, far, count)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)
    corners = run.decode(torch.tensor([[-far, -far], [far, far]], device=run.model.device))
    return corners.T, grid.to(run.model.device)


def _each(denoiser: Denoiser, x: Tensor, t: float, kind: str) -> Tensor:
    inner = denoiser
    if isinstance(denoiser, WithCondition) and denoiser.cond is not None:
        inner = WithCondition(denoiser.inner, denoiser.cond.expand(len(x)))
    alpha, sigma = (float(c) for c in inner.schedule(t))
    if kind == "score":
        return sigma * inner.score(x, t)  # of a length that every level can show
    if kind == "velocity":
        return inner.velocity(x, t)
    return inner(x, t).x0 - x / max(alpha, 1e-3)


@torch.no_grad()
def field(
    run: Run, data: Dataset, picture: np.ndarray | None, t: float, arrows: str, whose: str, label: str, seed: int
) -> dict[str, Any]:
    """Return arrows on a grid, of the network beside those of the optimal denoiser of the data, or their difference."""
    check_plane(run)
    t = max(t, run.diffusion.denoiser.schedule.t_min)
    limits, places = _places(run, data, t, SIDE)
    ours, best = (_each(d, places, t, arrows) for d in (_conditioned(run, label), _optimum(run, data, label)))
    scale = 2 * EDGE / SIDE * float(places.abs().max()) / max(float(torch.quantile(best.norm(dim=1), 0.9)), 1e-6)
    alpha, sigma = (float(c) for c in run.diffusion.denoiser.schedule(t))
    x0 = run.model.encode(data.batch(spread(len(data), CLOUD))[0].to(places.device))
    cloud = dots(run.decode(alpha * x0 + sigma * Noise(image_seeds(seed, len(x0))).like(x0)), 7, alpha=0.4)
    origin, begin = run.decode(torch.zeros(1, 2, device=places.device)), rounded(run.decode(places))
    shown = {"network": ours, "optimum": best} if whose == BOTH else {"difference": ours - best}
    panels = []
    for k, (name, vectors) in enumerate(shown.items()):
        tips = rounded(run.decode(vectors * scale * 0.9) - origin)
        layer = {"from": begin, "by": tips, "colour": k}
        title = f"{arrows} of the {name}, t = {t:.2f}"
        panels.append(plane(title, limits, dots=[cloud], arrows=[layer], axes=axes_of(run)))
    off = rms(ours - best) / max(rms(best), 1e-9)
    said = says(f"network and optimum differ by {off:.1%} of the optimum's length, over the grid")
    return {"panels": [planes(panels), said]}


def density(run: Run, data: Dataset, picture: np.ndarray | None, label: str) -> dict[str, Any]:
    """Return the density by the probability flow, in user units, as a picture to lie below points: the middles of cells."""
    check_plane(run)
    limits, _ = _places(run, data, run.diffusion.denoiser.schedule.t_min, FINE)
    (x, width), (y, height) = (_middles(low, high) for low, high in limits)
    places = torch.from_numpy(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)).float().to(run.model.device)
    names = run.config.data.labels
    cond = torch.full((len(places),), names.index(label)) if label in names else None
    found = run.diffusion.log_prob(places, cond, image_seeds(0, len(places)), tolerance=1e-3)
    p = found.nats.detach().float().cpu().numpy().reshape(FINE, FINE)[::-1]
    share = np.exp(p - p.max())
    shade = np.stack([42 + 0 * share, 102 + 0 * share, 211 + 0 * share, 235 * share**0.5], -1).round().astype(np.uint8)
    cloud = dots(data.some(500).numpy(), 7, alpha=0.35)
    whole = float(np.exp(p.astype(np.float64)).sum() * width * height)
    return {
        "panels": [
            plane("density by the flow", limits, below=shade, dots=[cloud], axes=axes_of(run)),
            says(
                f"it adds up to {whole:.2f} over the part of the plane that is shown, and should to 1 over all of it",
                f"at its densest it is {float(np.exp(p.max())):.3g} in the units of the data",
            ),
        ]
    }


def _middles(low: float, high: float) -> tuple[np.ndarray, float]:
    """Return the middles of FINE cells between two places, and the width of a cell."""
    width = (high - low) / FINE
    return low + width * (np.arange(FINE) + 0.5), width


@torch.no_grad()
def paths(
    run: Run,
    data: Dataset,
    picture: np.ndarray | None,
    place: list[list[float]],
    steps: int,
    label: str,
    seed: int,
    **chosen: str,
) -> dict[str, Any]:
    """Return the ways of one point from pure noise to data, under several samplers."""
    check_plane(run)
    denoiser = _conditioned(run, label)
    model = run.diffusion
    names = [name for name in dict.fromkeys(chosen.values()) if name != "none"]
    grid = GRIDS["uniform"]()(denoiser.schedule, steps)
    alpha, sigma = (float(c) for c in denoiser.schedule(float(grid[0])))
    size = (alpha**2 + sigma**2) ** 0.5
    unit = torch.tensor(place[:1], dtype=torch.float32, device=model.device)
    ways: list[dict[str, Any]] = []
    lines = []
    for k, name in enumerate(names):
        sampler = build(SAMPLERS, name, "sampler")
        frames = list(
            trajectory(denoiser, sampler, start(denoiser.schedule, float(grid[0]), unit), grid, Noise(image_seeds(seed, 1)))
        )
        points = run.decode(torch.cat([*(f.x for f in frames), frames[-1].x0]))
        ways.append({"points": rounded(points), "colour": k, "ends": True})
        lines.append(f"{name}: ends at ({points[-1][0]:.3f}, {points[-1][1]:.3f})")
    seen = [data.some(500).numpy(), *(way["points"].reshape(-1, 2) for way in ways)]
    ends = np.concatenate([np.stack([points.min(0), points.max(0)]) for points in seen])
    origin, far = run.decode(torch.tensor([[0.0, 0.0], [size, size]], device=model.device))
    below = dots(data.some(800).numpy(), 7, alpha=0.4)
    noise = {"origin": origin, "unit": far - origin}  # where standard deviations of the noise lie, for a place that is pressed
    panel = plane("one point, several samplers", limits_of(ends), dots=[below], paths=ways, axes=axes_of(run), **noise)
    return {"panels": [panel, says(*lines)], "names": names}


_NAMES = ("none", *SAMPLERS)
_LABEL = Control("label", "Label", "", "choice")

LESSONS = {
    "field": Lesson(
        "The field",
        "At every place and time the model says where to go. The score points to where noised data are dense, the "
        "velocity is where the flow moves. "
        "The optimum is what a denoiser would say that knew all data by heart.",
        r"\nabla_x \log p_t(x) = -\frac{\hat{\varepsilon}(x, t)}{\sigma}, \qquad v(x, t) = \dot{\alpha}\, \hat{x}_0 + "
        r"\dot{\sigma}\, \hat{\varepsilon}",
        "reverie gallery score RUN",
        field,
        (
            Control("t", "Time t", 0.4, low=0.0, high=1.0),
            Control("arrows", "Arrows", "score", "choice", choices=("score", "velocity", "way to x0")),
            Control("whose", "Of the", BOTH, "choice", choices=(BOTH, "difference")),
            _LABEL,
            Control("seed", "Seed", 0, "whole", 0, 999, 1),
        ),
        of="plane",
    ),
    "density": Lesson(
        "The density",
        "The flow that draws points can also be followed backwards, and tells how it stretches space on the way. "
        "So a diffusion model knows the density of every place. Dark is dense.",
        r"\log p(x_0) = \log p(x_1) + \int_0^1 \nabla \cdot v(x_t, t)\, dt",
        "reverie evaluate RUN",
        density,
        (_LABEL,),
        of="plane",
    ),
    "paths": Lesson(
        "One point, several samplers",
        "Every sampler starts from the same noise. Deterministic ones end near each other, the more so the more steps "
        "they take. "
        "Those that draw fresh noise go their own way.",
        r"x_{1} \to \cdots \to x_t \to x_s \to \cdots \to x_0",
        "reverie gallery samplers RUN",
        paths,
        (
            Control("place", "Where it starts, in standard deviations of the noise", [[1.0, -0.7]], "points", -3.0, 3.0),
            Control("steps", "Steps", 16, "whole", 2, 100, 1),
            *(
                Control(f"s{k + 1}", f"Sampler {k + 1}", name if name in SAMPLERS else "none", "choice", choices=_NAMES)
                for k, name in enumerate(("ddim", "heun", "dpm++2m", "ddpm"))
            ),
            _LABEL,
            Control("seed", "Seed", 0, "whole", 0, 999, 1),
        ),
        of="plane",
    ),
}
