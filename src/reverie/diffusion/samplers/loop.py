"""The sampling loop, and the interface of samplers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.base.scalar import sqrt
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.process import transition
from reverie.diffusion.schedule import Schedule


@dataclass(frozen=True)
class Frame:
    """Step i of a trajectory: x at time t and its estimate.  x: (B, ...)."""

    i: int
    of: int
    t: float
    x: Tensor
    pair: Pair

    @property
    def x0(self) -> Tensor:
        """The predicted clean sample x0: (B, ...)."""
        return self.pair.x0


class Sampler(ABC):
    """A rule for one step.  It has no schedule and no loop; its state between steps is returned and passed on as `memory`."""

    order: int | None = None  # of convergence to the probability flow; None for stochastic samplers
    allows_equal_times: bool = False  # whether a step may end at its start time

    @abstractmethod
    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Step from the current frame to time s and return x there and the memory (None at first).

        The frame contains the estimate at (x, t), so a sampler with one evaluation per step uses only the schedule of
        `denoise`.
        """

    def renoise(self, schedule: Schedule, x: Tensor, t: float, noise: Noise) -> tuple[Tensor, float]:
        """Return x and t of the next frame: by default, those of the last step."""
        return x, t

    def extra_evaluations(self, first: bool) -> int | None:
        """Return the number of calls of `denoise` per step besides the frame's own; None if it depends on x."""
        return 0

    def evaluations(self, grid: Tensor) -> int | None:
        """Return the number of function evaluations (NFE) of a trajectory over a grid; None if it depends on x."""
        total, first = 1, True
        for t, s in pairwise(grid.tolist()):
            if s <= t:
                extra = self.extra_evaluations(first)
                if extra is None:
                    return None
                total += 1 + extra
            first = s > t
        return total

    def check(self, schedule: Schedule, grid: Tensor) -> None:
        """Raise an error if this sampler does not support a grid under this schedule."""
        times = grid.tolist()
        if not times or not all(0 <= t <= 1 and schedule(t)[1] > 0 for t in times):
            raise UserError("a time grid needs at least one time, each in [0, 1] and with some noise left (sigma > 0)")
        if min(times) < schedule.t_min * (1 - 1e-9):
            raise UserError(
                f"this grid goes down to t = {min(times):.3g}, but the model is defined only above t = {schedule.t_min:.3g};"
                " take fewer steps or another grid"
            )
        if not self.allows_equal_times and any(t == s for t, s in pairwise(times)):
            raise UserError(
                "--grid level stays at one noise level, for --sampler langevin only; give that sampler or another grid"
            )


def affordable(sampler: Sampler, grid: Callable[[Schedule, int], Tensor], schedule: Schedule, budget: int) -> int | None:
    """Return the largest number of steps of a grid within a budget of function evaluations.

    None if the number depends on x; one step if even two exceed the budget.
    """
    for steps in range(budget, 1, -1):
        count = sampler.evaluations(grid(schedule, steps))
        if count is None:
            return None
        if count <= budget:
            return steps
    return 1


def start(schedule: Schedule, t: float, eps: Tensor) -> Tensor:
    """Return the initial noise of a trajectory: sqrt(alpha² + sigma²) eps, for data of unit variance."""
    alpha, sigma = schedule(t)
    return sqrt(alpha**2 + sigma**2) * eps


@torch.no_grad()
def trajectory(denoise: Denoiser, sampler: Sampler, x: Tensor, grid: Tensor, noise: Noise) -> Iterator[Frame]:
    """Sample along the grid and yield every frame; the last frame's x0 is the sample.

    The grid ends above sigma = 0, with an estimate of x0.  Where the grid increases, x is noised again by q(x_s | x_t)
    without an estimate, and the sampler's memory is reset.  x: (B, ...) at time grid[0]; grid: (n,) float64.
    """
    sampler.check(denoise.schedule, grid)
    times, memory = grid.tolist(), None
    for i, (t, s) in enumerate(zip(times, [*times[1:], None], strict=True)):
        if s is not None and s > t:
            scale, std = transition(denoise.schedule, t, s)
            x, memory = Pair(x, noise.like(x)).mix(scale, std), None
            continue
        x, t = sampler.renoise(denoise.schedule, x, t, noise)
        now = Frame(i, len(times), t, x, denoise(x, t))
        yield now
        if s is not None:
            x, memory = sampler.step(denoise, now, s, noise, memory)
