"""A sampler on a grid as a table of numbers, so that a loop that knows no sampler can walk it.

Every sampler but the adaptive one is linear in what it has seen: x at the k-th evaluation is a sum of earlier estimates of x0
and eps and of draws of noise, with weights that schedule and grid decide alone.  The weights are found by the sampler itself,
which is walked with unit vectors in place of images.
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

MOST_EVALUATIONS = 2000
NOTHING = 1e-12  # a weight below it is rounding

Terms = tuple[tuple[int, float], ...]  # (which one, its weight)


@dataclass(frozen=True)
class SolverStep:
    """One call of the network: x = sum of weights times x0 and eps of earlier evaluations and draws of noise, at alpha, sigma.

    frame: whether it is one that a film shows, and not one within a step.
    """

    t: float
    alpha: float
    sigma: float
    x0: Terms
    eps: Terms
    noise: Terms
    frame: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        return {"t": self.t, "alpha": self.alpha, "sigma": self.sigma, "frame": self.frame,
                "x0": self.x0, "eps": self.eps, "noise": self.noise}  # fmt: skip


class _Recorder(Denoiser):
    """Notes what each x is made of and answers with two new unit vectors, of which x is made from then on.

    x: (1, 2 evaluations + draws): the weights of all x0, all eps and all noise.
    """

    def __init__(self, schedule: Schedule, evaluations: int) -> None:
        super().__init__()
        self.schedule, self.count = schedule, evaluations
        self.rows: list[SolverStep] = []

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the unit vectors of this evaluation."""
        k, n = len(self.rows), self.count
        alpha, sigma = (float(c) for c in self.schedule(float(t)))
        of_x0, of_eps, of_noise = (_terms(part) for part in (x[0, :n], x[0, n : 2 * n], x[0, 2 * n :]))
        self.rows.append(SolverStep(float(t), alpha, sigma, of_x0, of_eps, of_noise))
        x0, eps = torch.zeros_like(x), torch.zeros_like(x)
        x0[0, k], eps[0, n + k] = 1.0, 1.0
        x.copy_(alpha * x0 + sigma * eps)  # in place, as the step holds x too: rows stay as short as the sampler's memory
        return Pair(x0, eps)


def _terms(weights: Tensor) -> Terms:
    return tuple((int(j), float(weights[j])) for j in (weights.abs() > NOTHING).nonzero()[:, 0])


class _Draws(Noise):
    """Unit vectors in place of noise, from a place on."""

    def __init__(self, place: int) -> None:
        super().__init__(torch.zeros(1, dtype=torch.int64))
        self.place = place

    def like(self, x: Tensor) -> Tensor:
        """Return the next one."""
        z = torch.zeros_like(x)
        z[0, self.place + self.draws] = 1.0
        self.draws += 1
        return z


def solver_steps(sampler: Sampler, schedule: Schedule, grid: Tensor) -> list[SolverStep]:
    """Return every evaluation of a sampler on a grid, the first one of noise alone; x0 of the last one is the sample."""
    count = sampler.evaluations(grid)
    if count is None:
        raise UserError("this sampler chooses its steps by what it sees, so there is no table of them; take another --sampler")
    if isinstance(sampler, DDPM) and sampler.variance in ("optimal", "learned"):
        raise UserError(f"the variance {sampler.variance!r} differs from image to image, so there is no table of its steps;"
                        " export with --sampler ddpm")  # fmt: skip
    if count > MOST_EVALUATIONS:
        raise UserError(f"a table of steps has at most {MOST_EVALUATIONS:,} evaluations, and this would have {count:,}")
    recorder, noise = _Recorder(schedule, count), _Draws(2 * count)
    first = noise.like(torch.zeros(1, 3 * count + 2 * len(grid) + 1, dtype=torch.float64))
    walk = trajectory(recorder, sampler, start(schedule, float(grid[0]), first), grid, noise)
    frames = {len(recorder.rows) - 1 for _ in walk}
    return [SolverStep(**{**vars(row), "frame": k in frames}) for k, row in enumerate(recorder.rows)]
