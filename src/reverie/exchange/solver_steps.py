"""A sampler on a grid as a table of coefficients, for a loop without sampler code.

All samplers except the adaptive one are linear in their inputs: x at evaluation k is a sum of earlier estimates of x0 and
eps and of noise draws, with weights that depend only on schedule and grid.  Running the sampler on unit vectors instead of
images yields them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.base.scalar import Time
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Sampler, start, trajectory
from reverie.diffusion.samplers.onestep import DDPM
from reverie.diffusion.schedule import Schedule

MAX_EVALUATIONS = 2000
NEGLIGIBLE = 1e-12  # smaller weights are rounding errors

Terms = tuple[tuple[int, float], ...]  # (index, weight)


@dataclass(frozen=True)
class SolverStep:
    """One evaluation of the network at x, a weighted sum of earlier x0, eps and noise draws, with alpha and sigma.

    frame: whether it is a frame of the trajectory rather than an evaluation within a step.
    """

    t: float
    alpha: float
    sigma: float
    x0: Terms
    eps: Terms
    noise: Terms
    frame: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"t": self.t, "alpha": self.alpha, "sigma": self.sigma, "frame": self.frame,
                "x0": self.x0, "eps": self.eps, "noise": self.noise}  # fmt: skip


class _StepRecorder(Denoiser):
    """Records the weights of each x and returns two new unit vectors as estimates.

    x: (1, 2 evaluations + draws), the weights of all x0, all eps and all noise draws.
    """

    def __init__(self, schedule: Schedule, evaluations: int) -> None:
        super().__init__()
        self.schedule, self.count = schedule, evaluations
        self.steps: list[SolverStep] = []

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the unit vectors of this evaluation."""
        k, n = len(self.steps), self.count
        alpha, sigma = (float(c) for c in self.schedule(float(t)))
        of_x0, of_eps, of_noise = (_terms(part) for part in (x[0, :n], x[0, n : 2 * n], x[0, 2 * n :]))
        self.steps.append(SolverStep(float(t), alpha, sigma, of_x0, of_eps, of_noise))
        x0, eps = torch.zeros_like(x), torch.zeros_like(x)
        x0[0, k], eps[0, n + k] = 1.0, 1.0
        x.copy_(alpha * x0 + sigma * eps)  # in place, as the step keeps x: limits the terms to the history of the sampler
        return Pair(x0, eps)


def _terms(weights: Tensor) -> Terms:
    return tuple((int(j), float(weights[j])) for j in (weights.abs() > NEGLIGIBLE).nonzero()[:, 0])


class _UnitNoise(Noise):
    """Unit vectors instead of noise, starting at index `first`."""

    def __init__(self, first: int) -> None:
        super().__init__(torch.zeros(1, dtype=torch.int64))
        self.first = first

    def like(self, x: Tensor) -> Tensor:
        """Return the next unit vector."""
        z = torch.zeros_like(x)
        z[0, self.first + self.draws] = 1.0
        self.draws += 1
        return z


def solver_steps(sampler: Sampler, schedule: Schedule, grid: Tensor) -> list[SolverStep]:
    """Return every evaluation of a sampler on a grid; the first x is noise, and x0 of the last one is the sample."""
    count = sampler.evaluations(grid)
    if count is None:
        raise UserError("an adaptive sampler has no table of steps; use another --sampler")
    if isinstance(sampler, DDPM) and sampler.variance in ("optimal", "learned"):
        raise UserError(f"the variance {sampler.variance!r} differs between images, so its steps have no table;"
                        " use --sampler ddpm")  # fmt: skip
    if count > MAX_EVALUATIONS:
        raise UserError(f"a table has at most {MAX_EVALUATIONS:,} evaluations, got {count:,}; decrease --steps")
    recorder, noise = _StepRecorder(schedule, count), _UnitNoise(2 * count)
    first = noise.like(torch.zeros(1, 3 * count + 2 * len(grid) + 1, dtype=torch.float64))
    frames = trajectory(recorder, sampler, start(schedule, float(grid[0]), first), grid, noise)
    frame_indices = {len(recorder.steps) - 1 for _ in frames}
    return [SolverStep(**{**vars(step), "frame": k in frame_indices}) for k, step in enumerate(recorder.steps)]
