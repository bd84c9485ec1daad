"""Langevin dynamics: at one noise level, annealed over noise levels, and as a corrector for any other sampler."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.base.scalar import combine, sqrt
from reverie.base.spec import build
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers.loop import Frame, Sampler
from reverie.diffusion.samplers.multistep import DPM2M, DPM3M, DPMSDE, AdamsBashforth, UniPC
from reverie.diffusion.samplers.onestep import DDIM, DDPM, Euler, EulerMaruyama, SigmaSpace
from reverie.diffusion.samplers.rungekutta import RK45, Heun
from reverie.diffusion.schedule import Schedule

Count = Annotated[int, Field(ge=1, le=10_000)]

PREDICTORS: dict[str, type[Sampler]] = {
    "ddim": DDIM,
    "ddpm": DDPM,
    "sigma-space": SigmaSpace,
    "euler": Euler,
    "euler-maruyama": EulerMaruyama,
    "heun": Heun,
    "rk45": RK45,
    "dpm++2m": DPM2M,
    "dpm++3m": DPM3M,
    "dpm++sde": DPMSDE,
    "unipc": UniPC,
    "adams-bashforth": AdamsBashforth,
}


def langevin_step(x: Tensor, pair: Pair, sigma: float, size: float, noise: Noise) -> Tensor:
    """Take one step of unadjusted Langevin dynamics at a noise level: x + h score + sqrt(2 h) z,  h = size sigma².

    Its stationary distribution is that of x up to O(size): a Gaussian's variance v becomes v / (1 - h / (2 v)).
    """
    return combine(1.0, combine(1.0, x, -size * sigma, pair.eps), sqrt(2 * size) * sigma, noise.like(x))


class Langevin(Sampler):
    """Langevin dynamics, `count` steps at each time of the grid except the last (arXiv:1907.05600).

    Annealed on a decreasing grid: at each level x takes its Langevin steps, h = size sigma², and is then scaled by r_s / r_t,
    r² = alpha² + sigma², which preserves the variance of unit-variance data.  On the grid `level` it stays at one noise level.
    """

    allows_equal_times = True

    def __init__(self, count: Count = 5, size: float = 0.1) -> None:
        if count < 1 or not 0 < size <= 1:
            raise UserError(f"langevin needs a count of at least 1 and a size in (0, 1], got {count} and {size}")
        self.count, self.size = count, size

    def extra_evaluations(self, first: bool) -> int:
        """Return the number of steps per level minus one."""
        return self.count - 1

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: None) -> tuple[Tensor, None]:
        """Return x at time s."""
        (alpha, sigma), (alpha_s, sigma_s) = denoise.schedule(now.t), denoise.schedule(s)
        x = langevin_step(now.x, now.pair, float(sigma), self.size, noise)
        for _ in range(self.count - 1):
            x = langevin_step(x, denoise(x, now.t), float(sigma), self.size, noise)
        return x * sqrt((alpha_s**2 + sigma_s**2) / (alpha**2 + sigma**2)), None


class PredictorCorrector(Sampler):
    """A step of any predictor, then `count` Langevin steps at the new noise level (arXiv:2011.13456, algorithm 1).

    h = 2 (snr sigma)²: the ratio of drift to noise is then snr, for a score of the expected norm sqrt(D) / sigma.  Norms
    measured over a batch would make images depend on their batch, and norms per image would change the stationary
    distribution.  The predictor's memory is reset each step, because it belongs to the x before the correction.
    """

    def __init__(self, predictor: str = "ddpm", snr: float = 0.16, count: Count = 1) -> None:
        if count < 1 or not 0 < snr <= 0.7:
            raise UserError(f"predictor-corrector needs a count of at least 1 and an snr in (0, 0.7], got {count} and {snr}")
        self.predictor = build(PREDICTORS, predictor, "predictor")
        self.snr, self.count = snr, count

    def extra_evaluations(self, first: bool) -> int | None:
        """Return the evaluations of the predictor and one per correction."""
        extra = self.predictor.extra_evaluations(first=True)
        return None if extra is None else extra + self.count

    def renoise(self, schedule: Schedule, x: Tensor, t: float, noise: Noise) -> tuple[Tensor, float]:
        """Add the noise of the predictor."""
        return self.predictor.renoise(schedule, x, t, noise)

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Any) -> tuple[Tensor, Any]:
        """Return x at time s."""
        x, _ = self.predictor.step(denoise, now, s, noise, None)
        sigma = float(denoise.schedule(s)[1])
        for _ in range(self.count):
            x = langevin_step(x, denoise(x, s), sigma, 2 * self.snr**2, noise)
        return x, None
