"""Runge-Kutta samplers: Heun's method of EDM, and adaptive Runge-Kutta 4(5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.base.scalar import combine, expand
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.process import transition
from reverie.diffusion.samplers.adaptive import TooStiffError, integrate
from reverie.diffusion.samplers.loop import Frame, Sampler
from reverie.diffusion.samplers.multistep import trapezoid
from reverie.diffusion.schedule import Schedule

TRAPEZOID_ABOVE = 1000.0  # sigma / alpha above which the step is the trapezoidal rule
MAX_CHURN = math.sqrt(2) - 1  # above it more noise would be added than x contains (arXiv:2206.00364)


class Heun(Sampler):
    """Step in y = x / alpha, u = sigma / alpha by the mean of eps at both ends, with EDM's churn (arXiv:2206.00364).

    y_s = y + (u_s - u_t) (eps_t + eps_s) / 2.  churn: before each step, while low <= u <= high, u is raised to (1 + churn) u by
    fresh noise, scaled by `noise`; EDM's S_churn is churn times the number of steps.  For u > 1,000, where errors of eps would
    be amplified, the step is the trapezoidal rule in x / sigma.
    """

    def __init__(self, churn: float = 0.0, low: float = 0.0, high: float = 1e6, noise: float = 1.0) -> None:
        if not 0 <= churn <= MAX_CHURN:
            raise UserError(f"churn must lie between 0 and sqrt(2) - 1 = {MAX_CHURN:.3f}, got {churn}")
        if not (0 <= low < high and noise > 0):
            raise UserError(f"churn needs 0 <= low < high and noise > 0, got {low}, {high} and {noise}")
        self.churn, self.low, self.high, self.noise = churn, low, high, noise
        self.order = None if churn else 2

    def extra_evaluations(self, first: bool) -> int:
        """Return one."""
        return 1

    def renoise(self, schedule: Schedule, x: Tensor, t: float, noise: Noise) -> tuple[Tensor, float]:
        """Raise the noise level, up to the end of the schedule."""
        alpha, sigma = schedule(t)
        if not (self.churn and not schedule.is_pure_noise(t) and self.low <= sigma / alpha <= self.high):
            return x, t
        higher = float(schedule.invert(-2 * math.log(sigma / alpha * (1 + self.churn))))
        if higher <= t:
            return x, t
        scale, std = transition(schedule, t, higher)
        return combine(scale, x, self.noise * std, noise.like(x)), higher

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: None) -> tuple[Tensor, None]:
        """Return x at time s."""
        (alpha_t, sigma_t), (alpha_s, sigma_s) = denoise.schedule(now.t), denoise.schedule(s)
        if sigma_t > TRAPEZOID_ABOVE * alpha_t:
            return trapezoid(denoise, now, s), None
        x = now.pair.mix(alpha_s, sigma_s)
        half = (sigma_s - alpha_s * sigma_t / alpha_t) / 2
        return combine(1.0, x, half, denoise(x, s).eps - now.pair.eps), None


class RK45(Sampler):
    """Dormand-Prince Runge-Kutta 4(5) with adaptive steps between the times of the grid (Dormand and Prince 1980).

    On the straight path y = x / (alpha + sigma), w = sigma / (alpha + sigma), dy/dw = eps - x0 is smooth up to alpha = 0 and
    the same for every schedule.  Each image has its own step sizes, so that it does not depend on its batch: a step is accepted
    if the RMS of error / (1 + |y|) is within the tolerance.
    """

    order = 5

    def __init__(self, tolerance: float = 1e-3) -> None:
        if not tolerance > 0:
            raise UserError(f"the tolerance must be above 0, got {tolerance}")
        self.tolerance = tolerance

    def extra_evaluations(self, first: bool) -> None:
        """Return None, because the number depends on the tolerance."""
        return

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return x at time s and the length of the next step of each image, (B,)."""
        (w, scale_t), (end, scale_s) = straight(denoise.schedule, now.t), straight(denoise.schedule, s)

        def slope(y: Tensor, w: Tensor) -> Tensor:
            return straight_slope(denoise, y, straight_time(denoise.schedule, w))

        first = now.pair.mix(-1.0, 1.0)
        try:
            y, stride = integrate(slope, now.x / scale_t, first, w, end, self.tolerance, memory)
        except TooStiffError:
            raise UserError(f"rk45 cannot reach the tolerance {self.tolerance:g} with this model; use a larger one") from None
        return scale_s * y, stride


def straight(schedule: Schedule, t: float) -> tuple[float, float]:
    """Return w = sigma / (alpha + sigma) and alpha + sigma at a time."""
    alpha, sigma = schedule(t)
    return float(sigma / (alpha + sigma)), float(alpha + sigma)


def straight_time(schedule: Schedule, w: Tensor) -> Tensor:
    """Return the times at positions w of the straight path: (B,)."""
    return torch.as_tensor(schedule.invert(2 * (torch.log1p(-w) - torch.log(w))))


def straight_slope(denoise: Denoiser, y: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor:
    """Return eps - x0 on the straight path at times t.  y: (B, ...); t: (B,)."""
    alpha, sigma = denoise.schedule(t)
    return denoise(expand(alpha + sigma, y) * y, t, cond).mix(-1.0, 1.0)
