"""Samplers, time grids, and the one sampling loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from reverie.denoiser import Denoiser
from reverie.errors import UserError
from reverie.noise import Noise
from reverie.pair import Pair
from reverie.scalar import Coefficient, combine, sqrt
from reverie.schedule import Schedule


@dataclass(frozen=True)
class Frame:
    """One moment of a trajectory, number i of as many: x at time t and the estimate made from it.  x: (B, ...)."""

    i: int
    of: int
    t: float
    x: Tensor
    pair: Pair

    @property
    def x0(self) -> Tensor:
        """The clean data that x seems to hide: (B, ...)."""
        return self.pair.x0


class Sampler(ABC):
    """A rule for one step.  It owns no schedule and no loop; what it must remember it returns."""

    @abstractmethod
    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Step from the current frame to time s and return x there and the memory (None at first).

        The frame holds the estimate at (x, t), so a sampler of one evaluation a step never calls `denoise`
        except for its schedule.
        """


def _renewed(schedule: Schedule, t: float, s: float) -> Coefficient:
    """Return the share of sigma_s² that the posterior q(x_s | x_t, x0) renews: 1 - (alpha_t sigma_s / (alpha_s sigma_t))²."""
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(t), schedule(s)
    return max(0.0, 1 - (alpha_t * sigma_s / (alpha_s * sigma_t)) ** 2)


class DDIM(Sampler):
    """Step by mixing the estimated noise with fresh noise (arXiv:2010.02502).

    x_s = alpha_s x0 + sigma_s (sqrt(1 - k) eps + sqrt(k) z),  k = eta² (1 - (alpha_t sigma_s / (alpha_s sigma_t))²)
    eta=0 is deterministic and of first order, eta=1 is DDPM.
    """

    def __init__(self, eta: float = 0.0) -> None:
        if not 0 <= eta <= 1:
            raise UserError(f"eta must lie in [0, 1], got {eta}")
        self.eta = eta

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Return x at time s."""
        alpha_s, sigma_s = denoise.schedule(s)
        if self.eta == 0:  # no noise is drawn that would be multiplied by zero
            return now.pair.mix(alpha_s, sigma_s), None
        k = self.eta**2 * _renewed(denoise.schedule, now.t, s)
        x = now.pair.mix(alpha_s, sigma_s * sqrt(1 - k))
        return combine(1.0, x, sigma_s * sqrt(k), noise.like(x)), None


class DDPM(Sampler):
    """Ancestral sampling (arXiv:2006.11239): the mean of q(x_s | x, x0) plus noise of one of two variances.

    posterior: sigma_s² k with k as in DDIM (beta-tilde, exact for a single data point);
    forward: r_s² (1 - (alpha_t r_s / (alpha_s r_t))²), r² = alpha² + sigma² (beta, exact for data N(0, I)).
    """

    def __init__(self, variance: Literal["posterior", "forward"] = "posterior") -> None:
        if variance not in ("posterior", "forward"):
            raise UserError(f"variance must be 'posterior' or 'forward', got {variance!r}")
        self.variance = variance

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Return x at time s."""
        (alpha_t, sigma_t), (alpha_s, sigma_s) = denoise.schedule(now.t), denoise.schedule(s)
        k = _renewed(denoise.schedule, now.t, s)
        if self.variance == "posterior":
            variance = sigma_s**2 * k
        else:
            r_t, r_s = alpha_t**2 + sigma_t**2, alpha_s**2 + sigma_s**2
            variance = r_s * (1 - (alpha_t / alpha_s) ** 2 * r_s / r_t)
        mean = now.pair.mix(alpha_s, sigma_s * sqrt(1 - k))
        return combine(1.0, mean, sqrt(variance), noise.like(mean)), None


SAMPLERS: dict[str, type[Sampler]] = {"ddim": DDIM, "ddpm": DDPM}


def uniform(schedule: Schedule, steps: int) -> Tensor:
    """Return steps times evenly spaced from 1 down to t_min; for a discrete chain of as many steps, its own times."""
    return torch.linspace(1, schedule.t_min, steps, dtype=torch.float64)


Grid = Callable[[Schedule, int], Tensor]

GRIDS: dict[str, Grid] = {"uniform": uniform}


def start(schedule: Schedule, t: float, eps: Tensor) -> Tensor:
    """Return the noise a trajectory starts from: sqrt(alpha² + sigma²) eps, the right size for data of unit variance."""
    alpha, sigma = schedule(t)
    return sqrt(alpha**2 + sigma**2) * eps


@torch.no_grad()
def trajectory(denoise: Denoiser, sampler: Sampler, x: Tensor, grid: Tensor, noise: Noise) -> Iterator[Frame]:
    """Walk x down the grid and yield every frame; the last frame's x0 is the sample.

    The grid ends above sigma = 0, and the last act is always one more estimate: no case for the end is needed.
    x: (B, ...) at time grid[0]; grid: (n,) float64, so first-order samplers cost n evaluations.
    """
    times, memory = grid.tolist(), None
    if not times or not all(0 <= t <= 1 and denoise.schedule(t)[1] > 0 for t in times):
        raise UserError("a time grid needs at least one time, each in [0, 1] and with some noise left (sigma > 0)")
    for i, (t, s) in enumerate(pairwise(times)):
        now = Frame(i, len(times), t, x, denoise(x, t))
        yield now
        x, memory = sampler.step(denoise, now, s, noise, memory)
    yield Frame(len(times) - 1, len(times), times[-1], x, denoise(x, times[-1]))
